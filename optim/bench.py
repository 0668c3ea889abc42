"""The decode benchmark: whole requests, one after the other, timed on the host without a profiler."""

import itertools
import time
from collections.abc import Callable
from datetime import UTC, datetime

import torch

from ling_prof.bench_report import SCHEMA, Bench, Floor, Run, summarize
from optim import base
from optim.engine import floor
from optim.engine.generate import Engine
from optim.engine.sample import Sampling
from optim.kernels.kda.naive import kda_chunk
from optim.options import BenchOptions
from optim.session import clocks_of, device_of, lock_of, open_engine, prompt_for
from optim.timer import COPIED, copy_gb_s

WARM_UP_STEPS = 8
Progress = Callable[[float], None]


def run(options: BenchOptions, progress: Progress = lambda _: None) -> Bench:
    """Opens the model, switches passes on, warms it up on one request, then times `options.runs` equal ones."""
    bandwidth, source = _bandwidth(options)
    engine = open_engine(options, options.osl, options.seed)
    with base.applied(engine, options.names(engine)) as proofs:
        found = _timed(engine, options, bandwidth, source, progress)
    found["notes"] += [f"{name}: {proof}" for name, proof in proofs.items()]
    return found


def _timed(engine: Engine, options: BenchOptions, bandwidth: float | None, source: str, progress: Progress) -> Bench:
    prompt = prompt_for(engine.c, options.isl, options.seed)
    sampling = Sampling(options.temperature, options.seed)
    request(engine, prompt, sampling, min(options.osl, WARM_UP_STEPS))
    runs, texts = [], []
    for number in range(options.runs):
        timed, text = request(engine, prompt, sampling, options.osl)
        runs.append(timed)
        texts.append(text)
        progress((number + 1) / options.runs)
    return _result(engine, options, runs, texts, bandwidth, source)


def _result(
    engine: Engine, options: BenchOptions, runs: list[Run], texts: list[list[int]], bandwidth: float | None, source: str
) -> Bench:
    summary = summarize(runs)
    return {
        "schema": SCHEMA,
        "command": options.command,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "lock": lock_of(engine, options).to_dict(),
        "clocks": clocks_of(engine),
        "runs": runs,
        "summary": summary,
        "floor": _floor(engine, options, summary["tpot_ms"]["mean"], bandwidth, source),
        "notes": _notes(engine, texts),
    }


def request(engine: Engine, prompt: list[int], sampling: Sampling, tokens: int) -> tuple[Run, list[int]]:
    """One request of `tokens` new tokens, whatever they are; every step ends when the host holds its token."""
    began = time.perf_counter()
    text = [engine.prefill(prompt, sampling)]
    ends = [time.perf_counter()]
    while len(text) < tokens:
        text.append(engine.step())
        ends.append(time.perf_counter())
    steps = [round(1e3 * (b - a), 6) for a, b in itertools.pairwise(ends)]
    tpot = 1e3 * (ends[-1] - ends[0]) / (tokens - 1)
    return {"ttft_ms": 1e3 * (ends[0] - began), "tpot_ms": tpot, "step_ms": steps, "tokens": tokens}, text


def _floor(engine: Engine, options: BenchOptions, tpot_ms: float, bandwidth: float | None, source: str) -> Floor:
    """The context is that of the middle step."""
    found = floor.parts(engine.c, options.isl + options.osl // 2, engine.w.embed.element_size())
    needed = floor.total(found)
    floor_ms = needed / bandwidth / 1e6 if bandwidth else None
    return {
        "bandwidth_gb_s": bandwidth,
        "bandwidth_source": source,
        "bytes_per_token": needed,
        "parts": [{"part": one.part, "formula": one.formula, "bytes": one.bytes} for one in found],
        "floor_ms": floor_ms,
        "share_of_floor": floor_ms / tpot_ms if floor_ms else None,
        "achieved_gb_s": needed / tpot_ms / 1e6,
    }


def _bandwidth(options: BenchOptions) -> tuple[float | None, str]:
    """GB/s and where the figure is from: the options, or a copy timed on the device while it is still empty."""
    if options.bandwidth is not None:
        return options.bandwidth, "--bandwidth"
    if device_of(options) == "cpu":
        return None, "the bandwidth of this device is unknown"
    torch.cuda.set_device(device_of(options))
    speed = copy_gb_s()
    torch.cuda.empty_cache()
    return speed, f"a copy of {COPIED / 1e9:.1f} GB timed here, bytes read plus written"


def _notes(engine: Engine, texts: list[list[int]]) -> list[str]:
    notes = []
    if len(texts) > 1:
        same = all(text == texts[0] for text in texts)
        said = "identical tokens" if same else "TOKENS DIFFER between the runs"
        notes.append(f"{len(texts)} runs, the same prompt: {said}")
    return notes + reservations(engine)


def reservations(engine: Engine) -> list[str]:
    """What a reader of this engine's times must know."""
    notes = []
    if engine.c.ranks > 1:
        notes.append(f"one of {engine.c.ranks} ranks, without the collectives between them: a lower bound")
    if not engine.use_graph:
        notes.append("no CUDA graph: every operation is launched by itself")
    if engine.model.prefill_ops.kda_chunk is kda_chunk and engine.token.device.type == "cuda":
        notes.append("slow prefill: this model's unbounded KDA decay is beyond the Triton kernel")
    return notes
