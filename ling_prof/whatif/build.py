"""The dependency graph of a view's rounds, out of the recording."""

from collections.abc import Iterator

import numpy as np

from ling_prof.analyses import layers
from ling_prof.errors import Missing
from ling_prof.roles import ROLES
from ling_prof.steps import WHOLE
from ling_prof.view import View, require_steps
from ling_prof.whatif import device, host
from ling_prof.whatif.graph import CALL, NONE, OP, RETURN, Graph, Text, text_of


def build(view: View, most: int | None = None) -> Graph:
    """The graph of the counted rounds of the view's focus, or of the `most` in the middle. Raises UserError, naming the
    recording, without any."""
    begins, ends = _rounds(view, most)
    ops = view.ops
    first, last = int(np.searchsorted(ops.start, begins[0])), int(np.searchsorted(ops.start, ends[-1]))
    row = np.arange(first, min(last + 1, len(ops)))
    start, end = ops.start[row], ops.end[row]
    calls = host.calls_of(view, row)
    of_ops, of_calls = device.arrays(view, row, calls.of_row), host.arrays(view, row, calls)
    events = _events(start, of_calls["began"], of_calls.pop("returned"))
    overlaps = (of_ops["before"] >= 0) & (of_ops["gap"] < 0)
    bounds = np.searchsorted(start, ends)
    layer, unnamed = _layers(view)
    return Graph(
        path=view.trace.path,
        gpu=_gpu(view),
        cannot_say=(*unnamed, *_hidden(view)),
        name=Text(ops.names.codes[row].astype(np.int64), np.asarray(ops.names.categories, object)),
        role=Text(ops.role[row], np.array(ROLES, object)),
        layer=text_of(layer[row]),
        start=start,
        duration=end - np.where(overlaps, start - of_ops["gap"], start),
        head=np.zeros(len(row), np.int64),  # a recording does not tell work from waiting
        gone=np.zeros(len(row), bool),
        early=np.zeros(len(row), bool),
        earlier=np.append(of_ops["before"], NONE),
        later=_later(of_ops["before"]),
        **of_ops,
        **of_calls,
        events=events,
        begins=np.searchsorted(start, begins),
        ends=np.where(bounds < len(row), bounds, -1),
        streams=np.argsort(ops.stream[row], kind="stable"),
    )


def _rounds(view: View, most: int | None) -> tuple[np.ndarray, np.ndarray]:
    """When each begins and ends, ns."""
    require_steps(view)
    rounds = view.chosen.groupby(view.rounds)
    begins, ends = rounds["start"].min().to_numpy(), rounds["end"].max().to_numpy()
    most = most or len(begins)
    first = max(0, (len(begins) - most) // 2)
    return begins[first : first + most], ends[first : first + most]


def _gpu(view: View) -> str | None:
    name = view.trace.device_name(view.ops.device)
    return None if name == f"device {view.ops.device}" else name


def _layers(view: View) -> tuple[np.ndarray, tuple[str, ...]]:
    """The layer of every op of the device, and why there is none."""
    try:
        return layers.of_ops(view), ()
    except Missing as missing:
        said = f"passes that look at layers find nothing: {missing.what}: {missing.why}; {missing.remedy}"
        return np.full(len(view.ops), "", object), (said,)


def _hidden(view: View) -> Iterator[str]:
    if view.ops.is_opaque.any():
        missing = view.trace.lacks["gpu.graph_node"]
        yield f"kernels inside CUDA graphs are hidden and stay as they are: {missing.why}; {missing.remedy}"
    if view.steps.source == WHOLE:
        yield "no step was found: the whole recording counts as one, to which no unprofiled time per token fits"
    if (view.ops.role == ROLES.index("all_reduce")).any():
        yield "other ranks are held still: what a collective waits for them counts as its own time"


def _later(before: np.ndarray) -> np.ndarray:
    later = np.full(len(before) + 1, NONE)
    later[before] = np.arange(len(before))
    return later


def _events(start: np.ndarray, began: np.ndarray, returned: np.ndarray) -> np.ndarray:
    """By time; at one time calls return first, then others begin, then ops start. A call of no length returns where it
    begins."""
    count, point = len(began), began == returned
    times = np.concatenate([returned, began, start])
    group = np.concatenate([np.where(point, 1, 0), np.ones(count, int), np.full(len(start), 2)])
    index = np.concatenate([np.arange(count), np.arange(count), np.arange(len(start))])
    second = np.concatenate([np.ones(count, int), np.zeros(count + len(start), int)])
    kind = np.repeat([RETURN, CALL, OP], (count, count, len(start)))
    order = np.lexsort((second, index, group, times))
    return np.stack([kind[order], index[order]], axis=1)
