"""docs/comparison.md from what peers.py collected: what is true of each recording, and what each tool says of it.

A tool's words become a `Said`: its idle share, to be held against the true one, and lines. Nothing here runs a tool.
"""

import html
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from ling_prof.units import show_time

HTA = {
    "temporal": "temporal breakdown",
    "unrounded": "the same with HTA_DISABLE_NS_ROUNDING=1",
    "idle": "idle time breakdown, all streams",
    "launches": "launch statistics",
    "critical": "critical path",
}
ALIKE = (("HolisticTraceAnalysis", "traceinsight"), ("nsys-ai",))  # read the same files and say a share
TEMPLATE = Path(__file__).with_suffix(".md")
MISSING = """
{tool} is missing: it could not be had where this page was made. Where it can, `python benchmarks/peers.py --only {tool}
--output {tool}.json` collects what it says, and `--with {tool}.json` adds that to the page.
"""
CRITICAL = {
    "cpu_bound": "CPU",
    "gpu_compute_bound": "GPU compute",
    "gpu_communication_bound": "GPU communication",
    "gpu_kernel_kernel_overhead": "kernel-kernel overhead",
    "gpu_kernel_launch_overhead": "kernel launch overhead",
}


class Said(NamedTuple):
    idle: float | None  # share of the device's time, 0 to 1; None where the tool does not say
    lines: list[str]
    unrounded: float | None = None  # the same of HTA told not to round


def of_hta(outcome: dict) -> Said:
    if "load" in outcome:
        return Said(None, [f"stops reading: {outcome['load']['error']}"])
    words: dict[str, Callable[[Any], str]] = {
        "temporal": lambda t: idle_of(1e3 * t["idle"], 1e3 * t["span"]),
        "unrounded": lambda t: idle_of(1e3 * t["idle"], 1e3 * t["span"]),
        "idle": lambda parts: ", ".join(f"{name} {show_time(1e3 * us)}" for name, us in parts.items() if us) or "none",
        "launches": lambda count: f"{count} kernels",
        "critical": shares,
    }
    answers = ((HTA[name], outcome[name], word) for name, word in words.items())
    lines = [f"{title}: {answer['error'] if failed(answer) else word(answer)}" for title, answer, word in answers]
    return Said(ratio(outcome["temporal"]), lines, ratio(outcome["unrounded"]))


def ratio(temporal: dict) -> float | None:
    return None if failed(temporal) else temporal["idle"] / temporal["span"]


def shares(path: dict[str, float]) -> str:
    parts = sorted(path.items(), key=lambda part: -part[1])
    return ", ".join(f"{CRITICAL.get(name, name)} {100 * us / sum(path.values()):.1f} %" for name, us in parts)


def of_nsys_ai(outcome: dict) -> Said:
    report, idle = outcome["report"], None
    gaps = re.findall(r"^\(No significant GPU idle gaps found.*\)$|^ *Total: \d+ gaps.*$", report, re.M)
    lines = [f"idle gaps: {line.strip()}" for line in gaps]
    parts = {name: float(ms) for name, ms in re.findall(r"^ *(Total span|Idle): +([\d.]+)ms", report, re.M)}
    if len(parts) == 2 and parts["Total span"]:
        idle = parts["Idle"] / parts["Total span"]
        lines.append(f"overlap breakdown: {idle_of(1e6 * parts['Idle'], 1e6 * parts['Total span'])}")
    lines += [" ".join(line.split()) for line in re.findall(r"CPU Sync: .*$", report, re.M)]
    lines += [f"{f['label']}: {f['note']}" for f in outcome["findings"] if f["label"].startswith("Critical path")]
    counts = Counter(finding["severity"] for finding in outcome["findings"])
    return Said(idle, [*lines, "findings: " + ", ".join(f"{n} {severity}" for severity, n in counts.items())])


def of_nsys(outcome: dict) -> Said:
    """Each rule by its first sentences, and how many rows it lists; where all were skipped, for want of what."""
    lines = []
    for rule, said in re.findall(r"^ \*\* [^\n]*\((\w+)\):\n(.*?)(?=^Processing |\Z)", outcome["text"], re.M | re.S):
        first = " ".join(said.strip().split("\n\n")[0].split())
        rows = len(re.findall(r"^ *\d", said.partition(" ---")[2], re.M))
        lines.append(f"{rule}: {first}" + (f" ({rows} rows)" if rows else ""))
    lacks = Counter(re.findall(r"^SKIPPED: .*does not contain the required ([^.]*)\.", outcome["text"], re.M))
    skipped = [f"rules skipped for want of {what}: {times}" for what, times in lacks.items()]
    return Said(None, lines or skipped or ["no rule says anything"])


def failed(answer: object) -> bool:
    return isinstance(answer, dict) and "error" in answer


SAYS = {"HolisticTraceAnalysis": of_hta, "traceinsight": of_hta, "nsys-ai": of_nsys_ai, "nsys": of_nsys}


def say(tool: str, outcome: dict) -> Said:
    return Said(None, [outcome["error"]]) if failed(outcome) else SAYS[tool](outcome)


def idle_of(idle: float, span: float) -> str:
    return f"idle {show_time(idle)} of {show_time(span)} ({100 * idle / span:.1f} %)"


def true_idle(true: dict) -> float:
    return 1 - true["busy"] / true["span"]


def of_truth(true: dict) -> list[str]:
    if failed(true):
        return [true["error"]]
    device = f", the busiest of {true['devices']} devices" if true["devices"] > 1 else ""
    lines = [f"{idle_of(true['span'] - true['busy'], true['span'])}, {true['kernels']} kernels{device}"]
    if true["ledger"]:
        parts = sorted(true["ledger"].items(), key=lambda part: -part[1])
        lines.append(f"{true['steps']}: " + ", ".join(f"{name} {100 * part:.1f} %" for name, part in parts[:5]))
    return lines + [true["sync"]] * bool(true["sync"])


def cell(lines: list[str]) -> str:
    return "<br>".join(html.escape(line, quote=False).replace("|", "\\|") for line in lines)


def table(head: list[str], rows: list[list[str]], align: str = "") -> str:
    rule = [":--" if side == "l" else "--:" for side in align or "l" * len(head)]
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, rule, *rows])


def titles(tools: dict[str, dict]) -> dict[str, str]:
    return {name: f"{name} {ran['version']}" for name, ran in tools.items()}


def idle_table(true: dict[str, dict], tools: dict[str, dict]) -> str:
    """Idle shares of the recordings that these tools, which read the same ones, were given."""
    files = [f for f in true if not failed(true[f]) and any(f in ran["said"] for ran in tools.values())]
    rows = []
    for file in files:
        given = [say(name, ran["said"][file]).idle if file in ran["said"] else None for name, ran in tools.items()]
        idle = [true_idle(true[file]), *given]
        rows.append([file, *("no answer" if share is None else f"{100 * share:.1f} %" for share in idle)])
    return table(["recording", "true", *titles(tools).values()], rows, "l" + "r" * (1 + len(tools)))


def distances(true: dict[str, dict], ran: dict, share: Callable[[dict], float | None]) -> list[float | None]:
    """By how many points of a percent each recording's true idle share is missed; None where none is given."""
    found = {file: share(outcome) for file, outcome in ran["said"].items() if "span" in true.get(file, {})}
    return [None if s is None else 100 * abs(s - true_idle(true[file])) for file, s in found.items()]


def summary(true: dict[str, dict], tools: dict[str, dict]) -> str:
    rows = []
    for name, ran in tools.items():
        for part, note in (("idle", ""), ("unrounded", ", HTA_DISABLE_NS_ROUNDING=1")):
            off = distances(true, ran, lambda outcome, n=name, p=part: getattr(say(n, outcome), p))
            if given := [points for points in off if points is not None]:
                near = sum(points < 1 for points in given)
                counts = [str(n) for n in (len(off), len(given), near)]
                rows.append([titles(tools)[name] + note, *counts, f"{median(given):.1f}", f"{max(given):.1f}"])
    head = ["tool", "recordings with GPU work", "share given", "less than 1 point off", "median off", "most off"]
    return table(head, rows, "lrrrrr")


def block(file: str, true: dict, tools: dict[str, dict]) -> str:
    """One recording: what is true, then each tool; tools that say the same share a row."""
    rows: dict[str, list[str]] = {}
    for name, ran in tools.items():
        if file in ran["said"]:
            rows.setdefault(cell(say(name, ran["said"][file]).lines), []).append(titles(tools)[name])
    found = [["true (ling-prof)", cell(of_truth(true))], *([", ".join(names), words] for words, names in rows.items())]
    return f"### {file}\n\n" + table(["", "says"], found)


def page(command: str, date: str, true: dict[str, dict], tools: dict[str, dict]) -> str:
    """peers_page.md filled in; `tools` as peers.run gives them, by name; `true` by file name."""
    groups = [{name: tools[name] for name in group if name in tools} for group in ALIKE]
    parts = {
        "command": command,
        "date": date,
        "tools": table(["tool", "version", "run on"], [[n, r["version"], r["date"]] for n, r in tools.items()]),
        "missing": "".join(MISSING.format(tool=name) for name in SAYS if name not in tools),
        "oracle": agreement(true),
        "summary": summary(true, tools),
        "idle": "\n\n".join(idle_table(true, group) for group in groups if group),
        "blocks": "\n\n".join(block(file, true[file], tools) for file in true),
    }
    return TEMPLATE.read_text().format(**parts)


def agreement(true: dict[str, dict]) -> str:
    known = [row["oracle"] for row in true.values() if row.get("oracle") is not None]
    if not known:
        return ""
    return (
        f"An independent script over the raw files finds the same for {sum(known)} of the {len(known)} it was run on."
    )
