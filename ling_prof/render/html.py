"""A Report as one page that needs nothing else: no network, no server; without JavaScript still its tables.

Every string of the recording passes `_e` on its way into the page, or `figures.style.text` on its way into a figure.
Should that ever fail, a policy in the head forbids requests, and scripts other than the page's own.
"""

import base64
import gzip
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

from ling_prof import __version__
from ling_prof.render import figures, tables
from ling_prof.render.figures.style import go, template
from ling_prof.report import Report
from ling_prof.units import one_line, show_time
from ling_prof.view import Options
from ling_prof.window import Window

HERE = Path(__file__).parent
ROWS = 12  # of a table, where nothing else is asked for
WIDE = 2  # times the room that names have in a terminal
SECTIONS = {
    "Blocking calls and late host code": ("syncs", "seams"),
    "Gaps": ("gaps",),
    "Kernels": ("kernels", "layers", "copies"),
    "Launches": ("launches", "graphs"),
}


def page(report: Report, windows: Sequence[Window], top: int = ROWS) -> str:
    """The page: figures and tables of `report`, of `top` rows at most; windows: the timeline to draw of each device in
    its summary."""
    style, script = ((HERE / f"page.{kind}").read_text() for kind in ("css", "js"))
    looks = {name: template(name == "dark").to_plotly_json() for name in ("light", "dark")}
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_policy(script)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{_e(_name(report))} - ling-prof</title>
<style>
{style}</style>
</head>
<body>
{_lines(_body(report, windows, top))}
{_data("looks", json.dumps(looks))}
<script type="text/plain" id="plotly">{_library()}</script>
<script>{script}</script>
</body>
</html>
"""


def _e(text: object) -> str:
    """Text, whatever it holds."""
    return escape(one_line(str(text)))


def _lines(parts: Iterator[str]) -> str:
    return "\n".join(parts)


def _name(report: Report) -> str:
    return Path(report["trace"]["path"]).name


def _policy(script: str) -> str:
    """No request, and no script but ours; plotly compiles what it draws with, hence 'unsafe-eval'."""
    own = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    allowed = f"script-src 'sha256-{own}' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data: blob:"
    return f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"


@cache
def _library() -> str:
    """plotly.js, as `inflated` of page.js reads it."""
    from plotly.offline import get_plotlyjs

    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), 9, mtime=0)).decode()


def _data(name: str, as_json: str) -> str:
    """JSON inside the page; without < no string in it can end the element."""
    safe = as_json.replace("<", r"\u003c")
    return f'<script type="application/json" id="{name}">{safe}</script>'


def _body(report: Report, windows: Sequence[Window], top: int) -> Iterator[str]:
    sections = [_device(report, *pair) for pair in zip(report["summary"], windows, strict=True)]
    sections += [("What would help most", _helps(report, top))]
    sections += [(title, _tables(report, names, top)) for title, names in SECTIONS.items()]
    sections += [("What this recording cannot say", _cannot_say(report))]
    written = [(f"section-{i}", title, _lines(parts)) for i, (title, parts) in enumerate(sections)]
    written = [section for section in written if section[2]]
    yield '<a class="skip" href="#content">To the content</a>'
    yield f'<header><h1>{_e(_name(report))}</h1><button id="theme" type="button" hidden></button></header>'
    links = "".join(f'<li><a href="#{name}">{_e(title)}</a></li>' for name, title, _ in written)
    yield f'<nav aria-label="Sections"><ul>{links}</ul></nav>\n<main id="content">'
    yield from _provenance(report)
    for name, title, parts in written:
        yield f'<section id="{name}">\n<h2>{_e(title)}</h2>\n{parts}\n</section>'
    yield "</main>"


def _provenance(report: Report) -> Iterator[str]:
    trace = report["trace"]
    said = {
        "recording": trace["path"],
        "format": trace["format"],
        "recorded with": ", ".join(f"{key} {value}" for key, value in trace["lock"].items()),
        "devices": ", ".join(f"{device['id']}: {device['name']}" for device in trace["devices"]),
        "looked at with": ", ".join(_options(report["options"])),
        "made by": f"ling-prof {__version__}",
    }
    rows = "".join(f"<dt>{_e(key)}</dt><dd>{_e(value)}</dd>" for key, value in said.items() if value)
    yield f"<dl>{rows}</dl>"
    for note in trace["notes"]:
        yield f"<p>Note: {_e(note)}</p>"
    yield "<noscript><p>The figures need JavaScript; the tables hold their numbers.</p></noscript>"


def _options(given: Mapping[str, Any]) -> Iterator[str]:
    """What was asked for, where it is not the default."""
    for key, default in asdict(Options()).items():
        if given[key] != default:
            yield f"{key} {show_time(given[key]) if key == 'unprofiled_tpot' else given[key]}"


def _device(report: Report, summary: Mapping[str, Any], window: Window) -> tuple[str, Iterator[str]]:
    names = {device["id"]: device["name"] for device in report["trace"]["devices"]}
    return f"GPU {summary['device']}: {names[summary['device']]}", _of_device(report, summary, window)


def _of_device(report: Report, summary: Mapping[str, Any], window: Window) -> Iterator[str]:
    device = summary["device"]
    yield from (f"<p>{_e(line)}</p>" for line in tables.device_lines(summary))
    if summary["rounds"]:
        yield "<h3>Where the mean step goes</h3>"
        yield _figure(
            f"ledger-{device}", figures.ledger_waterfall(report.data, device), "The mean step, class by class."
        )
        yield _table(tables.ledger(summary))
    yield "<h3>Every step</h3>"
    yield _figure(f"steps-{device}", figures.ledger_steps(report.data, device), "Each step, by ledger class.")
    yield f"<h3>Timeline of {_e(window.title)}</h3>"
    yield _figure(f"timeline-{device}", figures.timeline(window), _timeline_said(summary, window))
    if summary["rounds"]:
        yield "<h3>What the busy time is for</h3>"
        yield _figure(f"roles-{device}", figures.roles(report.data, device), "Busy time of the mean step, by role.")
        yield _table(tables.roles(summary))


def _timeline_said(summary: Mapping[str, Any], window: Window) -> str:
    which = "The step whose time is the median" if summary["rounds"] else "The first step"
    return (
        f"{which}, {show_time(window.end - window.start)}. Drag or + and - to zoom, arrows to move, 0 to see all of it."
    )


def _helps(report: Report, top: int) -> Iterator[str]:
    if report["helps"]["rows"]:
        said = "What each optimization is predicted to save of a step, alone, with the ends of its band."
        yield _figure("savings", figures.savings(report["helps"]["rows"]), said)
        yield _table(tables.helps(report, top, WIDE))
    else:
        none = "No optimization is predicted to save time. " * (report["helps"]["replay_error_pct"] is not None)
        yield f"<p>{none}{_e(report['helps']['basis'])}</p>"


def _tables(report: Report, names: Sequence[str], top: int) -> Iterator[str]:
    for name in names:
        yield from filter(None, [_table(getattr(tables, name)(report, top, WIDE))])


def _cannot_say(report: Report) -> Iterator[str]:
    for row in report["cannot_say"]:
        yield f"<h3>{_e(row['question'])}</h3>\n<p>{_e(row['reason'])}; {_e(row['remedy'])}.</p>"


def _figure(name: str, figure: go.Figure, said: str) -> str:
    height = figure.layout.height
    figure.layout.template = None
    role = 'role="application" tabindex="0"' if name.startswith("timeline") else 'role="img"'
    place = f'data-figure="{name}" style="min-height:{height}px"'
    plot = f'<div class="plot" {role} aria-label="{_e(said)}" {place}></div>'
    return f"<figure>{plot}<figcaption>{_e(said)}</figcaption></figure>\n{_data(name, figure.to_json())}"


def _table(of: tables.Table) -> str:
    notes = "".join(f'<p class="note">{_e(note)}</p>' for note in of.notes)
    if not of.rows:
        return notes
    left = [' class="left"' if column in of.left else "" for column in of.columns]
    head = "".join(f'<th scope="col"{c}>{_e(name)}</th>' for name, c in zip(of.columns, left, strict=True))
    rows = "\n".join(_row(row, left) for row in of.rows)
    table = f"<table><caption>{_e(of.title)}</caption><thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody></table>"
    return f'<div class="table" tabindex="0" role="region" aria-label="{_e(of.title)}">{table}</div>\n{notes}'


def _row(row: Sequence[str], left: Sequence[str]) -> str:
    kind = ' class="total"' if row[0] == tables.TOTAL else ' class="part"' if row[0].startswith(tables.PART) else ""
    cells = "".join(f"<td{c}>{_e(cell)}</td>" for cell, c in zip(row, left, strict=True))
    return f"<tr{kind}>{cells}</tr>"
