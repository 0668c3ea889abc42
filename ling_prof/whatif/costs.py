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
    """ns. kernel: what a kernel takes besides moving bytes; gap: between two nodes of a graph, as recorded; pdl: what
    chaining saves between two kernels, early: the same where the second asks for its weights before it waits; gemm:
    what a matrix-matrix kernel takes longer than a matrix-vector kernel for one token; traced: by how much a profiler
    lengthens a node of a graph; base, node: the host's time in the launch of a graph, and more per node.
    """

    kernel: float
    gap: float
    pdl: float
    early: float
    gemm: float
    traced: float
    base: float
    node: float


class Reckoning(NamedTuple):
    """Costs by which an edit saves about, at least and at most what it will; source: where they come from."""

    likely: Costs
    least: Costs
    most: Costs
    source: str


def reckoning(gpu: str | None, table: Path | None = None) -> Reckoning:
    """For a GPU: of `table`, or the one that comes with the package, or else another GPU's with twice the room.

    Raises UserError for a table that is none.
    """
    if table is not None:
        found = calibration.load(table)
        return _of(found, 1.0, f"{table}: {found['gpu']}, {found['date'][:10]}")
    known = calibration.shipped()
    if gpu in known:
        return _of(known[gpu], 1.0, f"the table of the {gpu} that comes along, {known[gpu]['date'][:10]}")
    whose = gpu or "this GPU, which the recording does not name"
    said = f"no table for {whose}: that of the {STAND_IN} stands in, with wider bands; measure one with ling-prof calibrate"
    return _of(known[STAND_IN], WIDER, said)


def _of(table: Calibration, room: float, source: str) -> Reckoning:
    """Kernel: the line through times and bytes where there are none. What a chain saves, and a matrix-vector kernel, is
    the median over the sizes measured; least and most are their ends."""
    gap, period = table["gap_ns"]["graph"], table["period_ns"]
    size, time = (np.array([row[key] for row in table["chained"]], float) for key in ("bytes", "graph_ns"))
    first = float(np.polyfit(size, time, 1)[1])
    saved = np.array([row["graph_ns"] - row["pdl_ns"] for row in table["chained"]])
    spared = np.array([row["gemm_ns"] - row["gemv_ns"] for row in table["products"]])
    traced = max(0.0, gap + table["empty_ns"] - period["graph"])
    pdl = max(0.0, period["graph"] - period["pdl"])
    launch = table["graph_launch"]
    likely = Costs(
        first - gap,
        gap,
        pdl,
        float(np.median(saved)),
        float(np.median(spared)),
        traced / 2,
        launch["base_ns"],
        launch["node_ns"],
    )
    low, high = np.quantile(spared, (0.25, 0.75))
    least = replace(
        likely,
        kernel=table["empty_ns"] / room,
        pdl=pdl / 2 / room,
        early=float(saved.min()) / room,
        gemm=low / room,
        traced=traced,
    )
    most = replace(
        likely,
        kernel=(time[0] - gap) * room,
        pdl=max(pdl, float(saved.min())) * room,
        early=float(saved.max()) * room,
        gemm=high * room,
        traced=0.0,
    )
    return Reckoning(likely, least, most, source)
