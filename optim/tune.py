"""Searches tile sizes for the GPU at hand: `ling-prof tune --model ling-3.0-tiny` rewrites the table.

Each choice is timed where it counts: all passes on, in the captured forward pass, whose weights no cache holds. One
kernel after the other takes its best, those of the largest matrices first; then all again, since a kernel that takes
fewer registers leaves them to the next one. A tile with which half a layer computes something else is left out.
"""

import json
import math
import re
import statistics
from collections.abc import Callable
from pathlib import Path

import torch

from ling_prof.errors import UserError
from ling_prof.plain_file import check_writable, write
from optim import base
from optim.engine.generate import Engine, Saved
from optim.kernels import tiles
from optim.options import RunOptions
from optim.session import open_engine, prompt_for
from optim.timer import device_ns
from optim.witness import MOST_HALF, STEPS, Course, course, distance

REPLAYS, ROUNDS = 15, 2
ROOM = 64  # tokens
WORTH = 0.999  # of the time so far: less of a gain is noise


def search(engine: Engine, only: str = "", say=print) -> dict[str, tiles.Tile]:
    """key -> the tile that made the forward pass fastest, of keys that match `only`; one that computes as the first.

    Needs passes applied and a request begun, with room for STEPS tokens.
    """
    found: dict[str, tiles.Tile] = {}
    saved = engine.save()
    tiles.asked.clear()
    replay_us(engine, saved)
    keys = [key for key in tiles.asked if re.search(only, key)]
    try:
        for key in ROUNDS * sorted(keys, key=lambda key: -math.prod(map(int, re.findall(r"\d+", key)))):
            found[key], best = _fastest(engine, saved, key, say)
            tiles.trial[key] = found[key]
            say(f"{key}: {found[key]}, the step {best:.1f} us")
    finally:
        for key in keys:
            tiles.trial.pop(key, None)
    return found


def _fastest(engine: Engine, saved: Saved, key: str, say) -> tuple[tiles.Tile, float]:
    """One kernel's tile and the time with it, us. Raises UserError where none fits."""
    found, best, first = None, math.inf, None
    for choice in tiles.asked[key]:
        tiles.trial[key] = choice
        if (took := replay_us(engine, saved)) >= WORTH * best:
            continue
        first = first or steps(engine, saved)
        if (error := distance(steps(engine, saved, first), first)) <= MOST_HALF:
            found, best = choice, took
        else:
            say(f"{key}: {choice} is left out: half a layer differs by {error:.1e} from that of the first tile")
    if found is None:
        raise UserError(f"{key}: no tile fits this GPU; add a smaller one to the choices of its kernel.")
    return found, best


def steps(engine: Engine, saved: Saved, fed: Course | None = None) -> Course:
    """Some steps from the saved state, with the tiles of now: optim.witness.course."""
    engine.restore(saved)
    return course(engine, list(range(STEPS)), fed)


def replay_us(engine: Engine, saved: Saved) -> float:
    """The median time of the captured forward pass, us; infinite for a tile that does not fit the processor."""
    engine.restore(saved)
    try:
        engine.capture()
    except Exception as error:
        if "out of resource" in str(error):
            return math.inf
        raise
    return statistics.median(device_ns(engine.replay) for _ in range(REPLAYS)) / 1e3


def check_pattern(only: str) -> None:
    """Raises UserError for what is no regular expression."""
    try:
        re.compile(only)
    except re.error as error:
        raise UserError(
            f"--only {only!r} is no regular expression ({error}); give a part of a kernel's name."
        ) from None


def run(model: str, isl: int, only: str, output: Path, say: Callable[[str], object] = print) -> None:
    """Searches with random weights, all passes on, and adds what is found to the table in `output`.

    Raises UserError without a GPU, for a pattern that is none, and for a file that cannot be written.
    """
    check_pattern(only)
    check_writable(output)
    if not torch.cuda.is_available():
        raise UserError("tiles are searched on a CUDA GPU, and torch finds none here.")
    engine = open_engine(RunOptions(model=model, isl=isl), ROOM)
    names = [name for name, module in base.passes().items() if name != "host_run_ahead" and not module.blocked(engine)]
    with base.applied(engine, names):
        engine.prefill(prompt_for(engine.c, isl, 0))
        found = search(engine, only, say)
    table = json.loads(output.read_text()) if output.exists() else {}
    table.setdefault(tiles.gpu(), {}).update(found)
    write(table, output)
