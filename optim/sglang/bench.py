"""The decode benchmark of a SGLang server: whole requests, one after the other, timed here and without a profiler."""

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import ling_prof
from ling_prof.bench_report import SCHEMA, Bench, Run, summarize
from ling_prof.errors import UserError
from ling_prof.server_info import accept_length, decoding_of, lock_of, speculates
from optim.sglang import configs, machine
from optim.sglang.client import Reply, Server, connect, doubt
from optim.sglang.options import BenchOptions, ServerOptions
from optim.sglang.server import launched

WARM_UP = 32  # tokens of a first request, whose prompt compiles what is not compiled yet
VOCABULARY = 1000, 10_000  # token ids that are plain words in any vocabulary of today
VERIFIED, GENERATED = "sglang:spec_verify_calls_total", "sglang:generation_tokens_total"
LEAST = 0.5  # tokens a step: a verify step makes one or more, others' requests blur the counters
SWITCHES = "LING_OPTIM"
Progress = Callable[[float], None]


def run(options: BenchOptions, progress: Progress = lambda _: None) -> Bench:
    """Warms the server up, then times `options.runs` equal requests. Raises UserError where that cannot be."""
    with serving(options) as server:
        passes = os.environ.get(SWITCHES, "").split(",") if options.launch else []
        return measure(server, options, tuple(name for name in passes if name), progress)


@contextmanager
def serving(options: ServerOptions) -> Iterator[Server]:
    """The server of the options: the one that runs, or one that lives as long as the block."""
    if options.url is not None:
        yield connect(options.url)
        return
    assert options.launch is not None
    with launched(options.launch, options.args) as server:
        yield server


def measure(
    server: Server, options: BenchOptions, passes: tuple[str, ...] = (), progress: Progress = lambda _: None
) -> Bench:
    """As `run`, of a server that serves; passes: the optimizations that are on in it.

    The prefix cache is flushed before each request: a cached prompt would show no prefill.
    """
    server.flush_cache()
    server.generate(prompt_for(options.isl, options.seed), min(options.osl, WARM_UP), options.temperature)
    before = server.counters() if speculates(server.info) else {}
    replies, kept = _replies(server, options, progress)
    runs = [timed(server, reply) for reply in replies]
    notes = [doubt(server), *kept, *_accepted(server, runs, replies, before), *_notes(server, options, replies)]
    return {
        "schema": SCHEMA,
        "command": options.command,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "lock": lock(server, options, passes),
        "clocks": machine.clocks() if server.is_local else {"sm_mhz": None, "mem_mhz": None},
        "runs": runs,
        "summary": summarize(runs),
        "notes": [*dict.fromkeys(filter(None, notes))],
    }


def _replies(server: Server, options: BenchOptions, progress: Progress) -> tuple[list[Reply], list[str]]:
    """Those that count, and what kept the prefix cache from being flushed before each."""
    replies, kept = [], []
    for number in range(options.runs):
        kept.append(_kept(server.flush_cache()))
        replies.append(server.generate(prompt_for(options.isl, options.seed), options.osl, options.temperature))
        progress((number + 1) / options.runs)
    return replies, kept


def prompt_for(tokens: int, seed: int) -> list[int]:
    """Random token ids; the server does not tell its vocabulary."""
    dice = random.Random(seed)
    return [dice.randrange(*VOCABULARY) for _ in range(tokens)]


def timed(server: Server, reply: Reply) -> Run:
    """The times of one request. Raises UserError where all its tokens came in one piece."""
    if len(reply.times_s) < 2:
        remedy = "start it with --stream-interval 1, without a proxy that buffers"
        raise UserError(f"{server.url} sends all tokens in one piece, which shows no time per token; {remedy}.")
    steps = [max(1e3 * (b - a), 1e-6) for a, b in pairwise(reply.times_s)]
    tokens = [b - a for a, b in pairwise(reply.counts)]
    run: Run = {
        "ttft_ms": 1e3 * reply.times_s[0],
        "tpot_ms": sum(steps) / sum(tokens),
        "step_ms": [round(step, 6) for step in steps],
        "tokens": reply.counts[-1],
        "step_tokens": tokens,
    }
    if accepted := accept_length(reply.counts[-1], reply.meta):
        run["accept_length"] = accepted
    return run


def lock(server: Server, options: BenchOptions, passes: tuple[str, ...]) -> dict[str, Any]:
    known: dict[str, Any] = {"isl": options.isl, "osl": options.osl, "passes": passes}
    known |= machine.gpus(server.info) if server.is_local else {}
    known |= machine.packages() if options.launch else {}
    pinned = os.environ.get(configs.PINNED) if options.launch else None
    how = decoding_of(server.info, options.temperature, pinned)
    return lock_of(server.info, decoding=how, ling_prof=ling_prof.__version__, **known).to_dict()


def _accepted(server: Server, runs: list[Run], replies: list[Reply], before: dict[str, float]) -> list[str]:
    """Fills in the accept length where requests do not tell theirs, by difference of the server's counters -> notes."""
    if not speculates(server.info) or all("accept_length" in run for run in runs):
        return []
    after = server.counters()
    verified, generated = (after.get(key, 0) - before.get(key, 0) for key in (VERIFIED, GENERATED))
    length = (generated - len(replies)) / verified if verified > 0 else 0.0
    if not LEAST <= length <= max(run["tokens"] for run in runs):
        remedy = "start the server with --enable-metrics"
        return [f"the accept length is not known: requests do not tell it, nor do counters; {remedy}"]
    for run in runs:
        run["accept_length"] = length
    return ["the accept length is the difference of the server's counters before and after all runs"]


def _kept(refusal: str) -> str:
    return f"the prefix cache could not be flushed ({refusal}): prompts may come from it" if refusal else ""


def _notes(server: Server, options: BenchOptions, replies: list[Reply]) -> Iterator[str]:
    if cached := max(reply.meta.get("cached_tokens") or 0 for reply in replies):
        yield f"{cached} tokens of a prompt came from the prefix cache: TTFT is not that of a whole prompt"
    if (interval := int(server.info.get("stream_interval") or 1)) > 1:
        yield f"the server sends tokens {interval} at a time (--stream-interval): steps and ITL are of such bundles"
    if len(replies) > 1 and all(reply.ids for reply in replies):
        same = all(reply.ids == replies[0].ids for reply in replies)
        said = "identical tokens" if same else "TOKENS DIFFER between the runs"
        yield f"{len(replies)} runs, the same prompt: {said}"
    if options.url:
        yield "a server that runs does not tell its passes: none are listed"
    if options.url and server.is_local and machine.gpus(server.info):
        yield "GPU and driver are those of this machine, which the URL names"
    yield "timed by the client, from sending a request to the arrival of each piece of its stream"
