"""Kineto JSON as a stream of event batches, in bounded memory.

The text is cut at event boundaries into batches that msgspec decodes; a batch it refuses is taken event by event,
repairing what real files hold (bad escapes, raw control characters, bad UTF-8, NaN, integers over int64, unescaped
quotes). Times stay text.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from ling_prof.errors import TraceError
from ling_prof.load.stream import pieces

BATCH = 8 << 20
HEAD_LIMIT = 64 << 20
TRIES = 8  # places to look for an edge, and pieces an event can fall into
ABSENT, NO_ARGS = msgspec.Raw(b""), msgspec.Raw(b"{}")
BOUNDARY = re.compile(rb'\}\s*,\s*(?=\{\s*"(?:ph|name|cat|ts|dur|pid|tid|id|args)"\s*:)')
ANY_BOUNDARY = re.compile(rb"\}\s*,\s*(?=\{)")
ARRAY = re.compile(rb'^\s*(?:\xef\xbb\xbf)?\s*\[|"traceEvents"\s*:\s*\[')
ARRAY_END = re.compile(rb"\}(?=\s*,?\s*\])")
BAD_ESCAPE = re.compile(r'\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')
SALVAGE = re.compile(r'"name"\s*:\s*"(?P<name>.*?)"\s*,\s*"(?:pid|ph|cat|ts|tid|id|args)"\s*:', re.S)
NUMBER = r'"{}"\s*:\s*"?(-?[\d.eE+-]+)'


UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Args(msgspec.Struct, gc=False):
    correlation: int = -1
    device: int = -1
    stream: int = -1
    bytes: int = -1
    graph_id: int = msgspec.field(default=-1, name="graph id")
    graph_node: int = msgspec.field(default=-1, name="graph node id")
    registers: int = msgspec.field(default=-1, name="registers per thread")
    shared_memory: int = msgspec.field(default=-1, name="shared memory")
    grid: msgspec.Raw = ABSENT
    block: msgspec.Raw = ABSENT
    wait_on_stream: int = -1
    event: int = msgspec.field(default=-1, name="wait_on_cuda_event_id")


class Event(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = -1
    tid: int | str = -1
    ts: msgspec.Raw = ABSENT
    dur: msgspec.Raw = ABSENT
    args: msgspec.Raw = NO_ARGS


@dataclass
class Reading:
    """What was met while reading; filled while `batches` runs."""

    path: Path
    partial: bool = False
    progress: Callable[[float], None] = lambda _: None
    meta: dict = field(default_factory=dict)
    repaired: int = 0
    dropped: int = 0
    cut: bool = False
    trailing: int = 0


# Not strict: HIP writes byte counts as strings.
_decode = msgspec.json.Decoder(list[Event], strict=False).decode
_decode_one = msgspec.json.Decoder(Event, strict=False).decode
_decode_args = msgspec.json.Decoder(list[Args], strict=False).decode


def batches(reading: Reading) -> Iterator[list[Event]]:
    """Lists of events in file order. Raises TraceError for text that holds no events or ends inside them."""
    source = pieces(reading.path, reading.progress, reading.partial)
    before, buffer = _head(reading.path, source)
    for piece in source:
        buffer += piece
        if len(buffer) < BATCH:
            continue
        if edges := _last_boundaries(buffer):
            events, tail, edge = _batch(reading, buffer, edges)
            if events:
                yield events
            if tail is not None:
                _finish(reading, before, tail + buffer[edge[0] :] + b"".join(source))
                return
            buffer = buffer[edge[1] :]
    yield from _last(reading, before, buffer)


def _last(reading: Reading, before: bytes, buffer: bytes) -> Iterator[list[Event]]:
    if buffer.lstrip()[:1] == b"]":
        _finish(reading, before, buffer)
        return
    events, tail = _up_to_end(reading, buffer)
    if tail is None:
        _refuse_no_object(reading.path, before + buffer)
        events, tail = _cut_off(reading, buffer), b""
    if events:
        yield events
    _finish(reading, before, tail)


def _head(path: Path, source: Iterator[bytes]) -> tuple[bytes, bytes]:
    """The text before the first event, and what was read from there on."""
    buffer = b""
    for piece in source:
        buffer += piece
        if found := ARRAY.search(buffer):
            return buffer[: found.end()], buffer[found.end() :]
        if len(buffer) > HEAD_LIMIT:
            break
    if not buffer.strip():
        raise TraceError(path, "the file is empty", "re-record: the profiler wrote nothing")
    keys = re.findall(rb'^\s*\{?\s*"([^"\n]{1,40})"\s*:', buffer[:4096], re.M)
    found_keys = f" (it starts with the key {keys[0].decode(errors='replace')!r})" if keys else ""
    raise TraceError(
        path,
        f"JSON without a traceEvents array{found_keys}",
        "give a torch-profiler trace (prof.export_chrome_trace) or an Nsight Systems .sqlite",
    )


def _last_boundaries(buffer: bytes) -> list[tuple[int, int]]:
    """The last few places where one event ends and the next begins, last first: (end of one, start of the next)."""
    for boundary in (BOUNDARY, ANY_BOUNDARY):
        reach = 1 << 16
        while reach < 8 * len(buffer):
            if edges := list(boundary.finditer(buffer, max(0, len(buffer) - reach))):
                return [(e.start() + 1, e.end()) for e in edges[: -1 - TRIES : -1]]
            reach *= 8
    return []


Edge = tuple[int, int]


def _batch(reading: Reading, buffer: bytes, edges: list[Edge]) -> tuple[list[Event], bytes | None, Edge]:
    """The events up to the last edge that leaves whole ones, what follows the array if it ends before (else None),
    and that edge. An edge inside an event's own arguments is passed over."""
    for edge in edges:
        try:
            return _decode(b"".join((b"[", memoryview(buffer)[: edge[0]], b"]"))), None, edge
        except UNREADABLE:
            pass
    text = buffer[: edges[0][0]]
    events, tail = _up_to_end(reading, text)
    return (list(_one_by_one(reading, text)) if tail is None else events), tail, edges[0]


def _up_to_end(reading: Reading, text: bytes) -> tuple[list[Event], bytes | None]:
    """The events before the end of the array, and what follows it; ([], None) when the array does not end in `text`."""
    for end in ARRAY_END.finditer(text):
        tail = text[end.end() :].lstrip(b" \t\r\n,")
        try:
            return _decode(b"[" + text[: end.end()] + b"]"), tail
        except UNREADABLE:
            if _balanced_tail(tail):
                return list(_one_by_one(reading, text[: end.end()])), tail
    return [], None


def _balanced_tail(tail: bytes) -> bool:
    """Whether `tail` reads as the rest of the file after the event array: '] , "key": value ... }' or ']'."""
    rest = tail.strip()[1:].strip()
    if rest in (b"", b"}"):
        return True
    try:
        msgspec.json.decode(b"{" + rest[1:])
    except UNREADABLE:
        return False
    return rest[:1] == b","


def _refuse_no_object(path: Path, text: bytes) -> None:
    """Raises TraceError for whole JSON with an entry among its events that is no object: its array ends unlike one."""
    try:
        whole = msgspec.json.decode(text)
    except UNREADABLE:
        return
    events = whole.get("traceEvents") if isinstance(whole, dict) else whole
    strange = [event for event in events if not isinstance(event, dict)] if isinstance(events, list) else []
    if strange:
        found = f"traceEvents holds {json.dumps(strange[0]):.40}, which is no object and so no event"
        raise TraceError(path, found, "take it out, or give the file as torch.profiler wrote it")


def _cut_off(reading: Reading, text: bytes) -> list[Event]:
    """The events before a cut, when asked for; the last, torn piece is dropped."""
    if b"{" not in text:
        raise TraceError(
            reading.path, "a JSON list without any event", "give a torch-profiler trace (prof.export_chrome_trace)"
        )
    if not reading.partial:
        raise TraceError(
            reading.path,
            "the JSON ends inside traceEvents: the profiler or the copy was cut off",
            "re-record, copy again, or add --partial to read the events before the cut",
        )
    reading.cut = True
    edge = max((e.end() for e in ANY_BOUNDARY.finditer(text)), default=0)
    events, torn = list(_one_by_one(reading, text[:edge].rstrip().rstrip(b","))) if edge else [], text[edge:]
    try:
        return [*events, _decode_one(torn.strip().rstrip(b","))]
    except UNREADABLE:
        return events


def _one_by_one(reading: Reading, text: bytes) -> Iterator[Event]:
    """Each event by itself; pieces that only make sense together are put together again."""
    pieces, at = _split(text), 0
    while at < len(pieces):
        event, used = _whole_event(pieces[at : at + TRIES])
        if event is None and (event := _repair(pieces[at])):
            reading.repaired += 1
        if event is None:
            reading.dropped += 1
        else:
            yield event
        at += used


def _whole_event(pieces: list[bytes]) -> tuple[Event | None, int]:
    """The event that the first one or more `pieces` make, and how many it took; (None, 1) when none does."""
    for used in range(1, len(pieces) + 1):
        try:
            return _decode_one(b",".join(pieces[:used])), used
        except UNREADABLE:
            pass
    return None, 1


def _split(text: bytes) -> list[bytes]:
    """`text` at every place that can be the end of an event."""
    edges = list(ANY_BOUNDARY.finditer(text))
    starts, ends = [0, *(e.end() for e in edges)], [*(e.start() + 1 for e in edges), len(text)]
    return [text[a:b] for a, b in zip(starts, ends, strict=True)]


def _repair(piece: bytes) -> Event | None:
    text = BAD_ESCAPE.sub(r"\\\\", piece.decode("utf-8", "replace"))
    try:
        raw = json.loads(text, strict=False, parse_float=str, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return _salvage(text)
    return _from_dict(raw) if isinstance(raw, dict) else None


def _from_dict(raw: dict) -> Event:
    fields: dict[str, Any] = {key: str(raw.get(key) or "") for key in ("ph", "cat", "name")}
    fields |= {key: raw[key] if isinstance(raw.get(key), (int, str)) else -1 for key in ("pid", "tid")}
    fields |= {key: msgspec.Raw(str(raw[key]).encode()) for key in ("ts", "dur") if raw.get(key) is not None}
    return Event(**fields, args=msgspec.Raw(json.dumps(raw.get("args")).encode()))


def arguments(events: list[Event]) -> list[Args]:
    """The arguments of each event; what is absent or no number is -1."""
    try:
        return _decode_args(b"[" + b",".join([event.args for event in events]) + b"]")
    except UNREADABLE:
        return [_arguments_of_one(bytes(event.args)) for event in events]


def _arguments_of_one(text: bytes) -> Args:
    try:
        return _decode_args(b"[" + text + b"]")[0]
    except UNREADABLE:
        raw = json.loads(text.decode("utf-8", "replace"), strict=False)
    raw = raw if isinstance(raw, dict) else {}
    known: dict[str, Any] = {f.name: raw.get(f.encode_name) for f in msgspec.structs.fields(Args)}
    shape = {key: msgspec.Raw(json.dumps(known.pop(key) or "").encode()) for key in ("grid", "block")}
    numbers: dict[str, Any] = {key: integer(value) for key, value in known.items()}
    return Args(**numbers | shape)


def _salvage(text: str) -> Event | None:
    """An event whose name holds unescaped quotes: its fields by pattern."""

    def number(key: str) -> str | None:
        found = re.search(NUMBER.format(key), text)
        return found and found[1]

    name, ts = SALVAGE.search(text), number("ts")
    if not name or ts is None:
        return None
    fields = {key: found[1] for key in ("ph", "cat") if (found := re.search(rf'"{key}"\s*:\s*"(\w+)"', text))}
    args = {f.encode_name: number(re.escape(f.encode_name)) for f in msgspec.structs.fields(Args)}
    ids = {key: integer(number(key)) for key in ("pid", "tid")}
    return _from_dict({**fields, **ids, "name": name["name"], "ts": ts, "dur": number("dur"), "args": args})


def integer(value: object) -> int:
    """`value` as an int64; integers over it keep their low 63 bits, so that equal ids stay equal; -1 for no number."""
    try:
        number = int(value) if isinstance(value, (int, str)) else int(float(value))  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return -1
    return number if -(2**63) <= number < 2**63 else number & (2**63 - 1)


def _finish(reading: Reading, before: bytes, tail: bytes) -> None:
    """The top-level keys around the array; a damaged rest is noted by leaving them out."""
    if reading.cut or not before.lstrip().startswith(b"{"):
        return
    try:
        around = msgspec.json.decode(before + (tail.strip() or b"]}"))
    except UNREADABLE:
        reading.trailing = len(tail)
        around = _lenient(before.decode("utf-8", "replace") + "]}")
    reading.meta = {k: v for k, v in around.items() if k != "traceEvents"} if isinstance(around, dict) else {}


def _lenient(text: str) -> dict:
    try:
        return json.loads(BAD_ESCAPE.sub(r"\\\\", text), strict=False)
    except ValueError:
        return {}
