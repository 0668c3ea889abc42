"""Passes, calibrations and scores as tables for a terminal."""

from typing import Any

from rich.console import RenderableType
from rich.text import Text

from ling_prof.render.text import table_of
from ling_prof.units import show_time
from optim.score import sentences, shown_rows


def passes(rows: list[dict[str, Any]]) -> list[RenderableType]:
    """What each pass is and, where sites are known, how many it would change and the time that they take a step."""
    with_sites = any(row["sites"] is not None for row in rows)
    columns = ("pass", "exact", "removes", *(("a step", "time a step", "largest site") if with_sites else ()))
    table = table_of("Passes", *columns, left=("pass", "exact", "removes", "largest site"))
    for row in rows:
        table.add_row(row["pass"], "yes" if row["exact"] else "no", row["removes"], *_sites(row))
    said = [Text(f"{row['pass']}: {row['cannot_say']}") for row in rows if row["cannot_say"]]
    return [table, *said]


def switches(rows: list[dict[str, Any]]) -> list[RenderableType]:
    """What a SGLang server can be switched by, and what an unmodified one has on."""
    table = table_of(
        "Passes of SGLang", "pass", "exact", "usually", "removes", left=("pass", "exact", "usually", "removes")
    )
    for row in rows:
        usually = "on" if row["default"] else "off"
        table.add_row(row["pass"], "yes" if row["exact"] else "no", usually, row["removes"])
    return [table, Text('LING_OPTIM="-pdl,+grouped_topk" in the environment of a server switches them.')]


def _sites(row: dict[str, Any]) -> tuple[str, ...]:
    sites = row["sites"]
    if not sites:
        return () if sites is None else ("0", "", "")
    count, total = (sum(site[key] for site in sites) for key in ("count", "time_ns"))
    return f"{count:.0f}", show_time(total), sites[0]["site"]


def calibration(table: dict[str, Any]) -> list[RenderableType]:
    launches = table_of(f"Launches on {table['gpu']}", "", "eager", "graph", "PDL", left=("",))
    for what, key in (("start to start, empty kernels", "period_ns"), ("gap as recorded", "gap_ns")):
        launches.add_row(what, *(show_time(table[key][mode]) for mode in ("eager", "graph", "pdl")))
    for chained in table["chained"]:
        times = (show_time(chained[key]) for key in ("graph_ns", "pdl_ns"))
        launches.add_row(f"start to start, {chained['bytes'] / 1e6:.1f} MB of weights", "", *times)
    host = table_of("The rest", "", "measured", left=("",))
    host.add_row("launch of a graph, its base", show_time(table["graph_launch"]["base_ns"]))
    host.add_row("and per node", show_time(table["graph_launch"]["node_ns"]))
    host.add_row("one small operation of torch", show_time(table["launch_call_ns"]))
    host.add_row("reading one number back", show_time(table["read_back_ns"]))
    host.add_row("weights read", f"{table['read_gb_s']:.0f} GB/s")
    host.add_row("memory copied", f"{table['copy_gb_s']:.0f} GB/s")
    return [launches, host]


def score(scored: dict[str, Any]) -> list[RenderableType]:
    """Predicted beside measured."""
    columns = ("pass", "by", "measured", "predicted", "at least", "at most", "error", "inside")
    table = table_of("Predicted beside measured", *columns, left=("pass", "by", "inside"))
    keys = ("measured_us", "predicted_us", "predicted_low", "predicted_high", "error_us")
    for row in shown_rows(scored):
        times = (show_time(row[key] * 1e3) for key in keys)
        table.add_row(row["pass"], row["method"], *times, "yes" if row["inside"] else "NO")
    return [table, *(Text(line) for line in sentences(scored))]
