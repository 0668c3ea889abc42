"""What a launch costs on a GPU, measured by `ling-prof calibrate`: what the edits of a replay reckon with.

The tables that come with the package lie in gpus.json, each with the command, the date and the versions it was made
with.
"""

from functools import cache
from pathlib import Path
from typing import Annotated, TypedDict

import msgspec
from msgspec import Meta

from ling_prof import plain_file
from ling_prof.errors import UserError

SCHEMA = "ling-prof.calibration/1"
REMEDY = "measure again with ling-prof calibrate"
SHIPPED = Path(__file__).with_name("gpus.json")

Positive = Annotated[float, Meta(gt=0, lt=1e9)]
Figure = Annotated[float, Meta(gt=-1e9, lt=1e9)]
Size = Annotated[int, Meta(gt=0, lt=2**50)]


class Modes(TypedDict):
    """Launched one by one but queued ahead, in a graph, and in a graph chained by PDL."""

    eager: Figure
    graph: Figure
    pdl: Figure


class Chained(TypedDict):
    """Kernels that stream cold weights, one behind the other in a graph: start to start, without and with PDL."""

    bytes: Size
    graph_ns: Positive
    pdl_ns: Positive


class Product(TypedDict):
    """One token times a matrix with cold weights: cuBLAS and a matrix-vector kernel, start to start in a graph."""

    bytes: Size
    gemm_ns: Positive
    gemv_ns: Positive


class GraphLaunch(TypedDict):
    """The host's time in the launch of a graph: base, and more per node."""

    base_ns: Figure
    node_ns: Figure


class Calibration(TypedDict):
    """Medians on one GPU, ns.

    period_ns: start to start of empty kernels, unprofiled. gap_ns: from the end of one to the start of the next as the
    profiler records it, below 0 where they overlap; empty_ns: such a kernel in a graph, as recorded. chained, products:
    fewest bytes first. launch_call_ns: the host's time for one small operation of torch. read_back_ns: its
    time to learn one number from an idle device. copy_gb_s counts bytes read and bytes written.
    """

    schema: str
    command: str
    date: str
    gpu: str
    driver: str | None
    cuda: str | None
    torch: str
    period_ns: Modes
    gap_ns: Modes
    empty_ns: Positive
    chained: Annotated[list[Chained], Meta(min_length=2)]
    products: Annotated[list[Product], Meta(min_length=1)]
    graph_launch: GraphLaunch
    launch_call_ns: Positive
    read_back_ns: Positive
    read_gb_s: Positive
    copy_gb_s: Positive


def load(path: Path) -> Calibration:
    """A table that `ling-prof calibrate` wrote. Raises UserError for what is none."""
    found = plain_file.read(path, SCHEMA, Calibration, REMEDY)
    if len({row["bytes"] for row in found["chained"]}) < 2:
        raise UserError(f"{path}: its chained kernels are all of one size; {REMEDY}.")
    return found


def save(table: Calibration, path: Path) -> None:
    """Raises UserError where that fails; the file is whole or not there."""
    plain_file.write(table, path)


@cache
def shipped() -> dict[str, Calibration]:
    """GPU -> the table that comes with the package."""
    tables = msgspec.json.decode(SHIPPED.read_bytes())
    msgspec.convert(tables, list[Calibration])
    return {table["gpu"]: table for table in tables}
