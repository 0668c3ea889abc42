"""A decode benchmark, and the comparison of two, as tables for a terminal."""

from collections.abc import Iterator
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
RANGE = ("mean", "low", "high")


def render(bench: Bench) -> RenderableType:
    """The whole benchmark."""
    below = floor(bench["floor"]) if "floor" in bench else []
    return Group(header(bench), times(bench["summary"]), *below, *notes("note", bench["notes"]))


def header(bench: Bench | Ablation) -> RenderableType:
    """Model, machine, versions and clocks."""
    of = lock.from_dict(bench["lock"], "this report")
    what = f"{of.model}, {of.dtype}, {of.isl} tokens in, {of.osl} out, {of.decoding}"
    keys = ("driver", "cuda", "torch", "triton", "sglang", "python", "ling_prof")
    versions = [f"{key.replace('_', '-')} {value}" for key in keys if (value := getattr(of, key))]
    clocks = [f"{key.removesuffix('_mhz')} at {mhz:g} MHz" for key, mhz in bench["clocks"].items() if mhz]
    lines = [
        ", ".join([lock.show(of.hardware) if of.hardware else "hardware not recorded", *clocks]),
        ", ".join(versions),
        f"{of.target}, passes: {lock.show(of.passes)}",
        f"{bench['date']}: {bench['command']}",
    ]
    return Group(Text(one_line(what), style="bold"), *(Text(one_line(line)) for line in lines))


def times(summary: Summary) -> RenderableType:
    """TTFT, TPOT and tokens per second: mean and range over the runs, median and p99 over the steps."""
    runs = "1 run" if summary["runs"] == 1 else f"{summary['runs']} runs"
    table = table_of(f"\nTime over {runs}", "", "mean", "low", "high", "step median", "step p99", left=("",))
    ttft, tpot = summary["ttft_ms"], summary["tpot_ms"]
    table.add_row("first token (TTFT)", *_times(ttft, *RANGE), "", "")
    table.add_row("per token (TPOT)", *_times(tpot, *RANGE, "median", "p99"))
    rates = (summary["tokens_per_s"], 1e3 / tpot["high"], 1e3 / tpot["low"])
    table.add_row("tokens per second", *(f"{rate:.1f}" for rate in rates), "", "")
    for row in _of_servers(summary):
        table.add_row(*row)
    return table


def _of_servers(summary: Summary) -> Iterator[tuple[str, ...]]:
    if itl := summary.get("itl_ms"):
        yield "between tokens (ITL)", *_times(itl, "mean"), "", "", *_times(itl, "median", "p99")
    if rate := summary.get("output_tokens_per_s"):
        yield "tokens per second, prompt included", f"{rate:.1f}", "", "", "", ""
    if accept := summary.get("accept_length"):
        yield "tokens a verify step (accept length)", *(f"{accept[key]:.3f}" for key in ("mean", "low", "high")), "", ""
        yield "TPOT x accept length", show_time(summary["tpot_ms"]["mean"] * accept["mean"] * MS), "", "", "", ""


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
    """What `bench_compare.compare` found."""
    more = [columns for key, columns in FIGURES.items() if any(found[label][key] for label in "ab")]
    extra = [title for titles, _ in more for title in titles]
    table = table_of("Time per token", "", *RANGE, *extra, "runs", "target", "passes", "file", left=LEFT)
    for label in "ab":
        side = found[label]
        words = (side["target"], ", ".join(side["passes"]) or "none", str(side["name"]))
        figures = [cell for _, cells in more for cell in cells(side)]
        times = _times(side["tpot_ms"], *RANGE)
        table.add_row(label.upper(), *times, *figures, str(side["runs"]), *(Text(one_line(word)) for word in words))
    lines = [_changed(found, "time per token"), found["verdict"]]
    if found["a"]["accept_length"] or found["b"]["accept_length"]:
        lines.insert(1, f"{_changed(found['step'], 'TPOT x accept length')}, which decides")
    return Group(table, *map(Text, lines), *notes("warning", found["warnings"]))


def _changed(change: dict[str, Any], of: str) -> str:
    sign = "+" if change["change_us"] > 0 else ""
    by = f"{sign}{show_time(change['change_us'] * 1e3)}, {change['change_pct']:+.2f} %"
    return f"B takes {change['ratio']:.4f} of A's {of} ({by})"


def _accept(side: dict[str, Any]) -> tuple[str, ...]:
    length = side["accept_length"]
    return (f"{length:.3f}" if length else "", *_times(side["step_ms"], *RANGE))


def _peak(side: dict[str, Any]) -> tuple[str, ...]:
    peak = side["peak_tokens_per_s"]
    return (f"{peak:.1f}" if peak else "",)


FIGURES = {  # titles and cells of columns that are there where a side has the figure
    "accept_length": (("accept", "TPOT x accept", "low", "high"), _accept),
    "peak_tokens_per_s": (("peak tokens/s (not judged)",), _peak),
}


def notes(kind: str, lines: list[str]) -> list[Text]:
    """What a reader must know besides the figures."""
    return [Text(one_line(f"{kind}: {line}"), style="yellow") for line in lines]
