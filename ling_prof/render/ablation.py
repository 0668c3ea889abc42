"""An ablation as tables for a terminal: what each pass is worth, and what vouches for it."""

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from ling_prof.ablation_report import COUNTS, Ablation, Attribution, Lowered, Rung
from ling_prof.render.bench import header, notes, show_bytes
from ling_prof.render.text import pairs, table_of
from ling_prof.units import one_line, show_time

MS, US = 1e6, 1e3  # ns
QUIET = 0.5  # % between two measurements of one combination; a machine that differs more is not fit to measure on
STRONGEST = 5


def render(ablation: Ablation) -> RenderableType:
    """The whole ablation."""
    sections = (attribution, proofs, ladder, interactions, gates, kernels, noise, blocked)
    tables = [part for section in sections for part in section(ablation)]
    return Group(header(ablation), overall(ablation), *tables, *notes("note", ablation["notes"]))


def overall(of: Ablation) -> RenderableType:
    """Baseline against all on, in one line."""
    base, full = of["baseline"]["tpot_ms"], of["all_on"]["tpot_ms"]
    if base is None or full is None:
        return Text(f"\nTPOT {_time(base, MS)} -> no time with all on: its gate failed", style="bold")
    rates = f"{1e3 / base:.1f} -> {1e3 / full:.1f} tokens/s"
    return Text(f"\nTPOT {_time(base, MS)} -> {_time(full, MS)} all on, {base / full:.3f}x, {rates}", style="bold")


def attribution(of: Ablation) -> list[RenderableType]:
    """What each pass saves of a token's time; the predictions beside it where there are any."""
    predicted = any(row["predicted_us"] is not None for row in of["attribution"])
    columns = [
        "pass",
        "exact",
        "gain",
        "% of baseline",
        "95 % interval",
        "how",
        *["predicted", "its band"] * predicted,
        "gate",
        "",
    ]
    rows = []
    for row in of["attribution"]:
        exact, more = "yes" if row["exact"] else "no", _forecast(row) * predicted
        rows.append([row["pass"], exact, *_worth(row), row["method"], *more, row["gate"], _doubt(of, row)])
    title = f"What each is worth, {of['design']} over {of['windows']} windows of {of['steps']} steps"
    return _table(title, columns, rows, left=("pass", "how", "gate", ""))


def proofs(of: Ablation) -> list[RenderableType]:
    """What showed that each pass was on."""
    rows = [[row["pass"], row["took_effect"]] for row in of["attribution"]]
    return _table("What showed that each was on", ["pass", "proof"], rows, left=("pass", "proof"))


def _worth(row: Attribution) -> list[str]:
    percent = "-" if row["gain_pct"] is None else f"{row['gain_pct']:+.2f}"
    return [_gain(row["gain_us"]), percent, _range(row["low"], row["high"], US)]


def _forecast(row: Attribution) -> list[str]:
    return [_gain(row["predicted_us"]), _range(row["predicted_low"], row["predicted_high"], US)]


def _doubt(of: Ablation, row: Attribution) -> str:
    """What speaks against a gain: its interval, the noise floor, and the error of the orders that were drawn."""
    error = row["error_us"]
    drawn = "" if error is None else f"+/- {show_time(error * US)} by the orders drawn"
    return ", ".join(filter(None, ["within noise" * within_noise(row, floor_of(of, row)), drawn]))


def floor_of(of: Ablation, row: Attribution) -> float:
    """The noise floor of a gain, percent of the baseline: of the A/A pair that is nearer to what it compares.

    A rung above the first and leave-one-out compare combinations that are fast, whose host jitters in another way.
    """
    base, full, loaded = of["baseline"]["tpot_ms"], of["all_on"]["tpot_ms"], of.get("all_on_noise_pct")
    higher = {rung["added"] for rung in of["ladder"][2:]}
    fast = row["method"] == "leave-one-out" or (row["method"] == "ladder" and row["pass"] in higher)
    if not fast or loaded is None or base is None or full is None:
        return of["noise_floor_pct"]
    return loaded * full / base


def within_noise(row: Attribution, floor: float) -> bool:
    """Whether a gain may be none: its interval holds 0, or it is below the noise floor (percent)."""
    percent, low, high = row["gain_pct"], row["low"], row["high"]
    if percent is None or low is None or high is None:
        return False
    return low <= 0 <= high or abs(percent) < floor


def ladder(of: Ablation) -> list[RenderableType]:
    """The time per token as the passes join one by one, and what their recordings say that they lower."""
    columns = ["rung", "TPOT", "95 % interval", "% of baseline", "lowers", "trace", "profiled / unprofiled"]
    rows = [_rung(rung, of["baseline"]["tpot_ms"]) for rung in of["ladder"]]
    return _table("The ladder", columns, rows, left=("rung", "lowers", "trace"))


def _rung(rung: Rung, base: float | None) -> list[str]:
    tpot, ratio = rung["tpot_ms"], rung["profiled_ratio"]
    share = "-" if tpot is None or base is None else f"{100 * tpot / base:.1f}"
    name = f"+ {rung['added']}" if rung["added"] else "baseline"
    interval = _range(rung["low"], rung["high"], MS)
    lowers = "; ".join(map(_lowered, rung["lowers"])) or "-"
    profiled = "-" if ratio is None else f"{ratio:.3f}"
    return [name, _time(tpot, MS), interval, share, lowers, rung["trace"] or "-", profiled]


def _lowered(row: Lowered) -> str:
    unit = "" if row["what"] in COUNTS else " us"
    return f"{row['what']} {row['before']:.1f} -> {row['after']:.1f}{unit}"


def interactions(of: Ablation) -> list[RenderableType]:
    """The pairs whose joint gain differs most from the sum of both."""
    known = [(row["us"], row) for row in of["interactions"] if row["us"] is not None]
    strongest = sorted(known, key=lambda pair: -abs(pair[0]))[:STRONGEST]
    rows = [[row["a"], row["b"], _gain(us), _range(row["low"], row["high"], US)] for us, row in strongest]
    title = f"Strongest interactions, {len(rows)} of {len(known)} (+: more together)"
    return _table(title, ["pass", "with", "us", "95 % interval"], rows, left=("pass", "with"))


def gates(of: Ablation) -> list[RenderableType]:
    """The correctness checks, those that failed first."""
    columns = ["passes", "verdict", "top-1", "KL mean", "KL max"]
    rows = [
        [
            _passes(gate["passes"]),
            ("" if gate["ok"] else "FAILED: ") + gate["verdict"],
            "-" if gate["top1_agreement"] is None else f"{100 * gate['top1_agreement']:.2f} %",
            *("-" if kl is None else f"{kl:.2e}" for kl in (gate["kl_mean"], gate["kl_max"])),
        ]
        for gate in sorted(of["gates"], key=lambda gate: gate["ok"])
    ]
    return _table("Gates", columns, rows, left=("passes", "verdict"))


def kernels(of: Ablation) -> list[RenderableType]:
    """Kernels by themselves, their weights not in the cache."""
    rows = [
        [
            row["kernel"],
            _passes(row["passes"]),
            show_time(row["cold_us"] * US),
            _range(row["low"], row["high"], US),
            show_bytes(row["bytes"]),
            f"{row['gb_s']:.0f}",
        ]
        for row in of["kernels"]
    ]
    columns = ["kernel", "passes", "a call", "95 % interval", "bytes", "GB/s"]
    return _table("Kernels, weights cold", columns, rows, left=("kernel", "passes"))


def noise(of: Ablation) -> list[RenderableType]:
    """How far one combination measured twice lies apart, and may."""
    percent, high = of["noise_floor_pct"], of["noise_high_pct"]
    loaded = of.get("all_on_noise_pct")
    full = "" if loaded is None else f"; with all on {loaded:.2f} %"
    lines: list[RenderableType] = [
        Text(f"A/A noise floor: {percent:.2f} % of TPOT, by chance up to {high:.2f} %{full}")
    ]
    loud = f"the noise floor is {QUIET} % or more: measure again on a quiet machine, or with more windows"
    return lines + notes("warning", [loud] * (percent >= QUIET))


def blocked(of: Ablation) -> list[RenderableType]:
    """The passes that cannot be applied, and why."""
    return pairs("Blocked here", {one_line(row["pass"]): one_line(row["reason"]) for row in of["blocked"]})


def _table(title: str, columns: list[str], rows: list[list[str]], left: Sequence[str]) -> list[RenderableType]:
    table = table_of(title, *columns, left=left)
    for row in rows:
        table.add_row(*(Text(one_line(cell)) for cell in row))
    return [table] if rows else []


def _time(value: float | None, unit: float) -> str:
    return "-" if value is None else show_time(value * unit)


def _gain(us: float | None) -> str:
    return "-" if us is None else f"{'+' if us > 0 else ''}{show_time(us * US)}"


def _range(low: float | None, high: float | None, unit: float) -> str:
    return "-" if low is None or high is None else f"{show_time(low * unit)} to {show_time(high * unit)}"


def _passes(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"
