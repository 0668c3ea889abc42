"""Recording a SGLang server with its own profiler: started with every flag said, its files awaited whole."""

import gzip
import re
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ling_prof.errors import UserError
from ling_prof.server_info import draft_tokens, speculates, world
from optim.options import check_folder, make_folder
from optim.sglang.bench import prompt_for, serving, timed
from optim.sglang.client import Refused, Reply, Server
from optim.sglang.options import RecordOptions

SETTLE, REHEARSED = 8, 64  # steps of a driven request before anything is timed; timed without the profiler
AFTER = 48  # steps a driven request goes on for, while the profiler starts and stops
POLL_S = 0.25
SUFFIX = ".trace.json.gz"
GRAPHS_OFF = "--disable-cuda-graph"
RANK = re.compile(r"-(?:TP|DP|PP|EP)-(\d+)")
Progress = Callable[[float], None]


@dataclass(frozen=True)
class Recording:
    """files: of every rank, in order of rank; tpot_ms, accept_length: of the driven request just before, or None.

    layers_from: the file of rank 0 with graphs off, where one was asked for.
    """

    files: tuple[Path, ...]
    tpot_ms: float | None = None
    accept_length: float = 1.0
    layers_from: Path | None = None


def record(options: RecordOptions, progress: Progress = lambda _: None) -> Recording:
    """Records into the new folder `options.output`; with `layers`, a second server with graphs off into one below it.

    Raises UserError where the folder is there already, the server refuses, or files stay out or cut off.
    """
    check_folder(options.output)
    if options.output.exists() and any(options.output.iterdir()):
        raise UserError(f"{options.output} is not empty; give a new folder with --output.")
    with serving(options) as server:
        found = _recorded(server, options, options.output)
    progress(0.5)
    if not options.layers:
        return found
    off = replace(options, args=(*options.args, GRAPHS_OFF))
    with serving(off) as server:
        return replace(found, layers_from=_recorded(server, off, options.output / "graphs-off").files[0])


def _recorded(server: Server, options: RecordOptions, folder: Path) -> Recording:
    if not options.drives:
        _start(server, options, folder)
        return Recording(_awaited(server, folder, options))
    reply = _driven(server, options, lambda: _start(server, options, folder))
    return replace(_rehearsed(server, reply), files=_awaited(server, folder, options))


def _start(server: Server, options: RecordOptions, folder: Path) -> None:
    is_new = not folder.exists()
    make_folder(folder)
    try:
        server.post("/start_profile", _flags(options, folder), options.timeout)
    except Refused as refusal:
        if is_new:
            with suppress(OSError):  # it is not empty
                folder.rmdir()
        if refusal.status != 500:
            raise
        raise UserError(f"{server.url} does not start its profiler; if it is on already, POST /stop_profile.") from None


def _flags(options: RecordOptions, folder: Path) -> dict[str, Any]:
    """Every flag that has a default is said: defaults move between versions, and the environment changes them."""
    return {
        "output_dir": str(folder.absolute()),
        "profile_id": "decode",
        "num_steps": options.steps,
        "activities": ["CPU", "GPU"],
        "with_stack": options.stacks,
        "record_shapes": options.shapes,
        "profile_by_stage": options.by_stage,
        "profile_stages": ["decode"] if options.by_stage else None,
        "merge_profiles": False,
    }


def _driven(server: Server, options: RecordOptions, start: Callable[[], None]) -> Reply:
    """A request that is in steady decode, and has been timed, when the profiler starts."""
    started = False

    def seen(pieces: int) -> None:
        nonlocal started
        if pieces == SETTLE + REHEARSED:
            start()
            started = True

    pieces = SETTLE + REHEARSED + options.steps + AFTER
    size = draft_tokens(server.info) * int(server.info.get("stream_interval") or 1)
    reply = server.generate(prompt_for(options.isl, 0), pieces * size, seen=seen)
    if not started:
        raise UserError(f"{server.url} sent its tokens in {len(reply.times_s)} pieces: too few to start a profile in.")
    return reply


def _rehearsed(server: Server, reply: Reply) -> Recording:
    """The time per token before the profiler, where it is known how many of them a step makes."""
    accept = timed(server, reply).get("accept_length")
    if accept is None and speculates(server.info):
        return Recording(())
    before = slice(SETTLE - 1, SETTLE + REHEARSED)
    run = timed(server, Reply(reply.times_s[before], reply.counts[before]))
    return Recording((), run["tpot_ms"], accept or 1.0)


def _awaited(server: Server, folder: Path, options: RecordOptions) -> tuple[Path, ...]:
    """The files of all ranks of this machine, each whole. Raises UserError after the timeout, the profiler stopped."""
    ranks = max(1, world(server.info) // int(server.info.get("nnodes") or 1))
    until, whole, sizes = time.monotonic() + options.timeout, set[Path](), dict[Path, int]()
    while len(whole) < ranks:
        if time.monotonic() > until:
            with suppress(UserError):
                server.post("/stop_profile", {})
            raise UserError(_late(server, folder, sorted(whole), ranks, options))
        time.sleep(POLL_S)
        for path in {*folder.glob(f"*{SUFFIX}")} - whole:
            size, sizes[path] = sizes.get(path), path.stat().st_size
            if size == sizes[path] and is_whole(path):  # one that grows is not
                whole.add(path)
    return tuple(sorted(whole, key=lambda path: ([int(rank) for rank in RANK.findall(path.name)], path.name)))


def is_whole(path: Path) -> bool:
    """Whether the gzip stream has begun and ended: it is written while it is packed."""
    begun = False
    try:
        with gzip.open(path) as file:
            while file.read(1 << 20):
                begun = True
    except (OSError, EOFError, zlib.error):
        return False
    return begun


def _late(server: Server, folder: Path, whole: list[Path], ranks: int, options: RecordOptions) -> str:
    there = sorted({*folder.glob(f"*{SUFFIX}")} - {*whole})
    if whole or there:
        cut = f", cut off: {', '.join(path.name for path in there)}" if there else ""
        said = f"{len(whole)} of {ranks} traces are whole after {options.timeout:g} s{cut}"
        return f"{folder}: {said}; wait longer with --timeout, and look at the server's log."
    remedy = "a folder that the server writes to as well" if not server.is_local else "its log"
    hint = "" if options.drives else "a profile needs requests while it runs: send some, or take --drive; "
    return f"{folder}: no trace came within {options.timeout:g} s; {hint}check {remedy}."
