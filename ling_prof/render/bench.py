"""A decode benchmark, and the comparison of two, as tables for a terminal."""

from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from ling_prof import lock
from ling_prof.ablation_report import Ablation
from ling_prof.bench_report import Bench, Floor, Summary
from ling_prof.render.text import table_of
from ling_prof.units import one_line, show_time

MS = 1e6  # ns
SIZES = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
LEFT = ("", "target", "passes", "file")


def render(bench: Bench) -> RenderableType:
    """The whole benchmark."""
    return Group(header(bench), times(bench["summary"]), *floor(bench["floor"]), *notes("note", bench["notes"]))


def header(bench: Bench | Ablation) -> RenderableType:
    """Model, machine, versions and clocks."""
    of = lock.from_dict(bench["lock"], "this report")
    what = f"{of.model}, {of.dtype}, {of.isl} tokens in, {of.osl} out, {of.decoding}"
    versions = ", ".join(
        f"{key} {value}" for key in ("driver", "cuda", "torch", "triton") if (value := getattr(of, key))
    )
    clocks = [f"{key.removesuffix('_mhz')} at {mhz:g} MHz" for key, mhz in bench["clocks"].items() if mhz]
    lines = [
        ", ".join([lock.show(of.hardware), *clocks]),
        f"{versions}, python {of.python}, ling-prof {of.ling_prof}",
        f"{of.target}, passes: {lock.show(of.passes)}",
        f"{bench['date']}: {bench['command']}",
    ]
    return Group(Text(one_line(what), style="bold"), *(Text(one_line(line)) for line in lines))


def times(summary: Summary) -> RenderableType:
    """TTFT, TPOT and tokens per second: mean and range over the runs, median and p99 over the steps."""
    runs = "1 run" if summary["runs"] == 1 else f"{summary['runs']} runs"
    table = table_of(f"\nTime over {runs}", "", "mean", "low", "high", "step median", "step p99", left=("",))
    ttft, tpot = summary["ttft_ms"], summary["tpot_ms"]
    table.add_row("first token (TTFT)", *_times(ttft, "mean", "low", "high"), "", "")
    table.add_row("per token (TPOT)", *_times(tpot, "mean", "low", "high", "median", "p99"))
    rates = (summary["tokens_per_s"], 1e3 / tpot["high"], 1e3 / tpot["low"])
    table.add_row("tokens per second", *(f"{rate:.1f}" for rate in rates), "", "")
    return table


def _times(row: Any, *keys: str) -> list[str]:
    return [show_time(row[key] * MS) for key in keys]


def floor(floor: Floor) -> list[RenderableType]:
    """The bytes a token must move, part by part, and what that means at the memory's bandwidth."""
    table = table_of("Bytes a token must move", "part", "bytes", "%", "formula", left=("part", "formula"))
    total = floor["bytes_per_token"]
    for part in floor["parts"]:
        size, share = show_bytes(part["bytes"]), f"{100 * part['bytes'] / total:.1f}"
        table.add_row(Text(one_line(part["part"])), size, share, Text(one_line(part["formula"])))
    table.add_section()
    table.add_row("total", show_bytes(total), "100.0", "")
    return [table, Text(one_line(_against(floor)))]


def _against(floor: Floor) -> str:
    achieved = f"achieved {floor['achieved_gb_s']:.0f} GB/s"
    if floor["floor_ms"] is None or floor["share_of_floor"] is None or floor["bandwidth_gb_s"] is None:
        return f"{achieved}; no floor: {floor['bandwidth_source']}; give it with --bandwidth GB/s"
    bandwidth = f"{floor['bandwidth_gb_s']:g} GB/s ({floor['bandwidth_source']})"
    share = f"{100 * floor['share_of_floor']:.1f} % of what the floor allows"
    return f"floor {show_time(floor['floor_ms'] * MS)} a token at {bandwidth}; {achieved}, {share}"


def show_bytes(size: float) -> str:
    """1234567 -> '1.235 MB'; decimal units, as bandwidths have."""
    for unit, name in SIZES:
        if size >= unit:
            return f"{size / unit:.3f} {name}"
    return f"{size:.0f} B"


def compare(found: dict[str, Any]) -> RenderableType:
    """What `bench_report.compare` found."""
    table = table_of("Time per token", "", "mean", "low", "high", "runs", "target", "passes", "file", left=LEFT)
    for label in "ab":
        side = found[label]
        words = (side["target"], ", ".join(side["passes"]) or "none", str(side["name"]))
        times = _times(side["tpot_ms"], "mean", "low", "high")
        table.add_row(label.upper(), *times, str(side["runs"]), *(Text(one_line(word)) for word in words))
    sign = "+" if found["change_us"] > 0 else ""
    change = f"{sign}{show_time(found['change_us'] * 1e3)}, {found['change_pct']:+.2f} %"
    lines = [f"B takes {found['ratio']:.4f} of A's time per token ({change})", found["verdict"]]
    return Group(table, *map(Text, lines), *notes("warning", found["warnings"]))


def notes(kind: str, lines: list[str]) -> list[Text]:
    """What a reader must know besides the figures."""
    return [Text(one_line(f"{kind}: {line}"), style="yellow") for line in lines]
