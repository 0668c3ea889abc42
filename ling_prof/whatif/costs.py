"""What the edits reckon with: what a kernel, a gap and a launch cost, as is likeliest and at the ends of a band."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ling_prof.whatif import calibration
from ling_prof.whatif.calibration import Calibration

STAND_IN = "NVIDIA H200"
WIDER = 2.0  # how much less or more each may be where another GPU's table stands in


@dataclass(frozen=True)
class Costs:
    """ns. empty: an empty kernel; kernel: what one takes besides moving bytes; gap: between two nodes of a graph, as
    recorded; apart, chained: the same where chaining is taken away, and where it is there; hidden: what a chained
    kernel did before the one before had ended; pdl: what chaining saves between two kernels, early: the same where the
    second asks for its weights before it waits; gemm: what a matrix-matrix kernel takes longer than a matrix-vector
    kernel for one token; traced: by how much a profiler lengthens a node of a graph, between 0 and twice that; base,
    node: the host's time in the launch of a graph, and more per node.
    """

    empty: float
    kernel: float
    gap: float
    apart: float
    chained: float
    hidden: float
    pdl: float
    early: float
    gemm: float
    traced: float
    base: float
    node: float


class Reckoning(NamedTuple):
    """The costs as they are likeliest, and others between which they lie; source: where they come from."""

    likely: Costs
    ends: tuple[Costs, ...]
    source: str


def reckoning(gpu: str | None, table: Path | None = None) -> Reckoning:
    """For a GPU: of `table`, or the one that comes with the package, or else another GPU's with twice the room.

    Raises UserError for a table that is none.
    """
    if table is not None:
        found = calibration.load(table)
        other = f", not of the {gpu}, so taken from half to twice" if gpu not in (None, found["gpu"]) else ""
        return _of(found, WIDER if other else 1.0, f"{table}: of the {found['gpu']}{other}, {found['date'][:10]}")
    known = calibration.shipped()
    if gpu in known:
        return _of(known[gpu], 1.0, f"the table of the {gpu} that comes along, {known[gpu]['date'][:10]}")
    whose = gpu or "this GPU, which the recording does not name"
    said = f"no table for {whose}: that of the {STAND_IN} stands in, from half to twice; ling-prof calibrate makes one"
    return _of(known[STAND_IN], WIDER, said)


def _of(table: Calibration, room: float, source: str) -> Reckoning:
    """kernel: where the line of times over bytes meets no bytes. What a chain, or a matrix-vector kernel, saves is the
    median over the sizes measured. The ends are quartiles or extremes, `room` times further: where a kernel spares
    little, and much, each with the least and the most that an early one hides."""
    gap, period, empty, launch = table["gap_ns"]["graph"], table["period_ns"], table["empty_ns"], table["graph_launch"]
    size, time = (np.array([row[key] for row in table["chained"]], float) for key in ("bytes", "graph_ns"))
    crossing = float(np.polyfit(size, time, 1)[1]) - gap
    early = [max(0.0, row["graph_ns"] - row["pdl_ns"]) for row in table["chained"]]
    gemm = [row["gemm_ns"] - row["gemv_ns"] for row in table["products"]]
    pdl, traced = period["graph"] - period["pdl"], gap + empty - period["graph"]
    likely = Costs(
        empty=empty,
        kernel=max(empty, crossing),
        gap=gap,
        apart=gap,
        chained=table["gap_ns"]["pdl"],
        hidden=empty / 2,
        pdl=max(0.0, pdl),
        early=float(np.median(early)),
        gemm=float(np.median(gemm)),
        traced=max(0.0, traced / 2),
        base=max(0.0, launch["base_ns"]),
        node=max(0.0, launch["node_ns"]),
    )
    low, high = (float(value) for value in np.quantile(gemm, (0.25, 0.75)))
    least = {"kernel": empty, "empty": empty / 2, "apart": likely.pdl, "pdl": likely.pdl / 2, "gemm": low}
    kernel = max(likely.kernel, time.min() - gap)
    most = {"kernel": kernel, "empty": likely.kernel, "apart": 2 * gap, "pdl": min(early), "gemm": high}
    sides = (({**least, "hidden": 0.0}, 1 / room), ({**most, "hidden": empty}, room))
    ends = [
        replace(likely, **{name: float(value) * wider for name, value in {**side, "early": ahead}.items()})
        for side, wider in sides
        for ahead in (min(early), max(early))
    ]
    return Reckoning(likely, tuple(ends), source)
