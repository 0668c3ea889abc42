"""What is drawn of one step between two times, as plain data: boxes on lanes, few enough for a browser."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pandas as pd

from ling_prof import intervals as iv
from ling_prof.errors import UserError
from ling_prof.host import place
from ling_prof.roles import LABELS, ROLES, short_name
from ling_prof.timeline import BUSY, CLASSES
from ling_prof.trace import thread_keys
from ling_prof.units import show_time
from ling_prof.view import View

FEW = 500  # boxes of a device, of however many
PIXELS = 2000  # of a window: what is narrower than one may be drawn together
NAME = 160  # characters of a kernel
COLUMNS = ("lane", "start", "end", "label", "group", "count", "total", "detail")


@dataclass(frozen=True)
class Window:
    """A part of a step; all times in ns from the trace's start.

    step: its index; title: its name, or those of all the steps of a round; origin: when it starts; start, end: the part
    that is drawn; lanes: names, top to bottom. boxes, one row each: lane (index), start, end, label, group (a role, a
    ledger class, 'call', 'blocking' or 'function'), count (of what was drawn together), total (ns of all these inside
    the window), detail (lines about the longest). On one lane no two boxes overlap.
    """

    step: int
    title: str
    origin: int
    start: int
    end: int
    lanes: tuple[str, ...]
    boxes: pd.DataFrame


@dataclass(frozen=True)
class _Part:
    """What lies on one lane, or on several where it overlaps; sorted by start. say(item): its label and detail."""

    name: str
    start: np.ndarray
    end: np.ndarray
    group: np.ndarray
    item: np.ndarray
    say: Callable[[int], tuple[str, str]]


def window(view: View, index: int, start: int | None = None, end: int | None = None, most: int = 4000) -> Window:
    """What is drawn of step `index` from `start` to `end` (default: all of it), in about `most` boxes at most.

    Raises UserError for a step that is not there, or a window without length.
    """
    if index not in view.steps.table.index:
        raise UserError(f"{view.trace.path}: no step {index}; there are {len(view.steps.table)}, counted from 0.")
    step = view.steps.table.loc[index]
    begin, until = int(step["start"] if start is None else start), int(step["end"] if end is None else end)
    if until <= begin:
        raise UserError(f"{view.trace.path}: a window from {begin} to {until} ns has no length.")
    parts = [*_host(view, begin, until), *_streams(view, begin, until), _ledger(view, begin, until)]
    lanes, boxes = _laid_out([part for part in parts if len(part.start)], begin, until, most)
    return Window(index, str(step["name"] or step["phase"]), int(step["start"]), begin, until, tuple(lanes), boxes)


def median_window(view: View, most: int = 4000) -> Window:
    """All of the round whose wall is the median, as `account` takes it; where none counts, the first step."""
    steps = view.chosen[view.rounds == view.median_round] if view.n_rounds else view.steps.table[:1]
    found = window(view, int(steps.index[0]), int(steps["start"].iloc[0]), int(steps["end"].iloc[-1]), most)
    titles = [name or phase for name, phase in zip(steps["name"], steps["phase"], strict=True)]
    return replace(found, title=" + ".join(titles))


def median_windows(seen: Sequence[View], most: int = 4000) -> list[Window]:
    """That of each device, of `most` boxes together."""
    return [median_window(view, max(FEW, most // len(seen))) for view in seen]


def _within(start: np.ndarray, end: np.ndarray, begin: int, until: int) -> np.ndarray:
    return np.flatnonzero((start < until) & (end > begin))


def _host(view: View, begin: int, until: int) -> Iterator[_Part]:
    """Of each thread that launches or waits here: the functions it was in, and its calls."""
    if not view.trace.has("api"):
        return
    api = view.trace.api
    keys, start, end = thread_keys(api), api["start"].to_numpy(), api["end"].to_numpy()
    blocks = np.zeros(len(api), bool)
    blocks[view.timeline.blocking] = True
    mine = _within(start, end, begin, until)
    mine = mine[view.ops.own_calls[mine] & (blocks[mine] | np.isin(keys[mine], iv.distinct(view.ops.thread)))]
    say = _call_sayer(view, keys)
    for key in pd.unique(keys[mine]):
        rows = mine[keys[mine] == key]
        name = f"thread {api['tid'].iloc[rows[0]]}"
        if view.trace.has("host"):
            yield _functions(view, int(key), name, begin, until)
        group = np.where(blocks[rows], "blocking", "call").astype(object)
        yield _Part(f"{name}, CUDA calls", start[rows], end[rows], group, rows, say)


def _call_sayer(view: View, keys: np.ndarray) -> Callable[[int], tuple[str, str]]:
    api = view.trace.api
    names, start, end = api["name"].array, api["start"].to_numpy(), api["end"].to_numpy()
    site = cache(view.host.site)

    def say(row: int) -> tuple[str, str]:
        at = int(view.host.at(keys[row : row + 1], start[row : row + 1])[0])
        took = f"{show_time(end[row] - start[row])} on the host"
        return str(names[row]), f"{took}\n{site(at) if at >= 0 else ''}"

    return say


def _functions(view: View, key: int, name: str, begin: int, until: int) -> _Part:
    """The innermost function of the user's own, else whatever encloses the thread, while it does."""
    host = view.host
    times, rows = host.innermost(key)
    inside = slice(max(0, np.searchsorted(times, begin, "right") - 1), np.searchsorted(times, until))
    times, rows = times[inside], rows[inside]
    own = np.where(rows >= 0, host.own_function[rows], -1)
    rows = own if (own >= 0).any() else rows
    opens = np.flatnonzero(rows != np.r_[-2, rows[:-1]])
    start, end, row = times[opens], np.r_[times[opens], until][1:], rows[opens]
    known = np.flatnonzero(row >= 0)
    group = np.full(len(known), "function", object)
    return _Part(f"{name}, code", start[known], end[known], group, row[known], lambda r: (place(host.name(r)), ""))


def _streams(view: View, begin: int, until: int) -> Iterator[_Part]:
    ops = view.ops
    mine = _within(ops.start, ops.end, begin, until)
    for stream in iv.distinct(ops.stream[mine]):
        on = mine[ops.stream[mine] == stream]
        group = np.array(ROLES, object)[ops.role[on]]
        yield _Part(f"stream {stream}", ops.start[on], ops.end[on], group, on, lambda i: _op(view, i))


def _op(view: View, i: int) -> tuple[str, str]:
    ops = view.ops
    told = [f"{LABELS[ROLES[ops.role[i]]]}, {show_time(ops.end[i] - ops.start[i])}"]
    if ops.launch[i] >= 0:
        ahead = show_time(max(0, ops.start[i] - ops.launch_end[i]))
        told.append(f"{view.trace.api['name'].array[ops.launch[i]]} returned {ahead} before")
    return short_name(ops.name(i), NAME), "\n".join(told)


def _ledger(view: View, begin: int, until: int) -> _Part:
    pieces = view.timeline.pieces
    idle = _within(pieces.start, pieces.end, begin, until)
    idle = idle[pieces.cls[idle] != BUSY]
    site = cache(lambda call: _call_site(view, call))

    def say(i: int) -> tuple[str, str]:
        call = int(pieces.blocker[i])
        before = f"until {short_name(view.ops.name(int(pieces.op[i])), NAME)} began"
        return CLASSES[pieces.cls[i]], "\n".join([before, *([site(call)] if call >= 0 else [])])

    group = np.array(CLASSES, object)[pieces.cls[idle]]
    return _Part("idle, by class", pieces.start[idle], pieces.end[idle], group, idle, say)


def _call_site(view: View, call: int) -> str:
    api = view.trace.api.iloc[call : call + 1]
    row = int(view.host.at(thread_keys(api), api["start"].to_numpy())[0])
    return f"{api['name'].iloc[0]} < {view.host.site(row)}" if row >= 0 else str(api["name"].iloc[0])


def _laid_out(parts: list[_Part], begin: int, until: int, most: int) -> tuple[list[str], pd.DataFrame]:
    """(names of lanes, boxes): each part on as many lanes as overlap in it."""
    names: list[str] = []
    frames = []
    for number, part in enumerate(parts):
        lane = iv.lanes(part.start, part.end)
        boxes = {"lane": len(names) + lane, "part": number, "item": part.item, "group": part.group}
        drawn = {"start": np.maximum(part.start, begin), "end": np.minimum(part.end, until)}
        frames.append(pd.DataFrame(boxes | drawn))
        names += [part.name + (f", lane {i + 1}" if i else "") for i in range(lane.max() + 1)]
    if not frames:
        return [], pd.DataFrame(columns=list(COLUMNS))
    found = _few(pd.concat(frames).sort_values(["lane", "start"], ignore_index=True), until - begin, most)
    said = [parts[part].say(item) for part, item in zip(found["part"], found["item"], strict=True)]
    found["label"], found["detail"] = [label for label, _ in said], [detail for _, detail in said]
    return names, found[list(COLUMNS)]


def _few(boxes: pd.DataFrame, length: int, most: int) -> pd.DataFrame:
    """The boxes with count and total; more than `most` are drawn together where they are narrower than a pixel, which
    grows until they are few enough."""
    pixel = max(1, length // PIXELS)
    found = _together(boxes, 0)
    while len(found) > most and pixel < length:
        found, pixel = _together(boxes, pixel), 2 * pixel
    return found


def _together(boxes: pd.DataFrame, pixel: int) -> pd.DataFrame:
    """Those of a lane that are narrower than `pixel` and start in the same one become one box; it is the longest of the
    group that takes most of it."""
    length = boxes["end"] - boxes["start"]
    narrow = (length < pixel).to_numpy()
    where = np.stack([boxes["lane"], boxes["start"] // max(1, pixel)])
    opens = (where[:, 1:] != where[:, :-1]).any(0) | ~narrow[1:] | ~narrow[:-1]
    boxes = boxes.assign(length=length, box=np.r_[0, np.cumsum(opens)])
    weight = boxes.groupby(["box", "group"])["length"].transform("sum")
    main = boxes.assign(weight=weight).sort_values(["box", "weight", "length"]).drop_duplicates("box", keep="last")
    each = boxes.groupby("box")
    sums = {"start": each["start"].min(), "end": each["end"].max(), "count": each.size(), "total": each["length"].sum()}
    return main.set_index("box").assign(**sums).reset_index(drop=True)


def thinned(launches: pd.DataFrame, most: int = 2000) -> pd.DataFrame:
    """Rows of analyses.launches.series as they are drawn: of many the one least and the one most ahead in each of
    `most` / 2 equal spans of time."""
    if len(launches) <= most:
        return launches
    called = launches["called"].to_numpy()
    span = (called - called[0]) * (most // 2) // (called[-1] - called[0] + 1)
    ahead = launches["ahead_ns"].groupby(span)
    return launches.loc[iv.distinct(np.r_[ahead.idxmin(), ahead.idxmax()])]
