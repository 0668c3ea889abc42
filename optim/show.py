"""Passes as tables for a terminal."""

from typing import Any

from rich.console import RenderableType
from rich.text import Text

from ling_prof.render.text import table_of
from ling_prof.units import show_time


def passes(rows: list[dict[str, Any]]) -> list[RenderableType]:
    """What each pass is and, where sites are known, how many it would change and the time that they take a step."""
    with_sites = any(row["sites"] is not None for row in rows)
    columns = ("pass", "exact", "removes", *(("a step", "time a step", "largest site") if with_sites else ()))
    table = table_of("Passes", *columns, left=("pass", "exact", "removes", "largest site"))
    for row in rows:
        table.add_row(row["pass"], "yes" if row["exact"] else "no", row["removes"], *_sites(row))
    said = [Text(f"{row['pass']}: {row['cannot_say']}") for row in rows if row["cannot_say"]]
    return [table, *said]


def _sites(row: dict[str, Any]) -> tuple[str, ...]:
    sites = row["sites"]
    if not sites:
        return () if sites is None else ("0", "", "")
    count, total = (sum(site[key] for site in sites) for key in ("count", "time_ns"))
    return f"{count:.0f}", show_time(total), sites[0]["site"]
