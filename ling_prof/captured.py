"""Where the nodes of a replayed CUDA graph come from: the call, and so the host range, in which each was captured."""

import re

import numpy as np
import pandas as pd

from ling_prof.calls import LAUNCH, matching
from ling_prof.ops import COPY
from ling_prof.trace import thread_keys
from ling_prof.view import View

COPY_CALL = re.compile(r"^(cuda|cu|hip)Mem(cpy|set)")


def host_rows(view: View) -> np.ndarray:
    """For each op the host row open when its graph node was captured; -1 outside graphs and where not recorded.

    Nsight Systems numbers the nodes. Kineto does not: there the calls inside a capture are the nodes of a graph in
    order, taken for it when a replay ran as many ops of the same kinds on one stream.
    """
    if view.trace.has("capture") and view.trace.has("gpu.graph_node"):
        return _by_node(view)
    return _by_order(view) if view.trace.has("api") else np.full(len(view.ops), -1)


def _by_node(view: View) -> np.ndarray:
    out = np.full(len(view.ops), -1)
    capture = view.trace.capture
    node = view.trace.gpu["graph_node"].to_numpy()[view.ops.row]
    first = _originals(dict(zip(capture["node"], capture["original"], strict=True)), np.unique(node[node >= 0]))
    made = {n: i for i, n in enumerate(capture["node"].to_numpy())}
    known = {n: made[o] for n, o in first.items() if o in made}
    at = np.array([known.get(int(n), -1) for n in node])
    found = at >= 0
    out[found] = view.host.at(thread_keys(capture)[at[found]], capture["time"].to_numpy()[at[found]])
    return out


def _originals(cloned_from: dict[int, int], nodes: np.ndarray) -> dict[int, int]:
    """Each node led back through its clones to the captured one; a cycle ends where it closes."""
    out = {}
    for node in map(int, nodes):
        seen, current = {node}, node
        while (above := cloned_from.get(current, -1)) >= 0 and above not in seen:
            seen.add(above)
            current = above
        out[node] = current
    return out


def _by_order(view: View) -> np.ndarray:
    out = np.full(len(view.ops), -1)
    captures = _captured_calls(view.trace.api)
    made = [(calls, view.host.at(thread_keys(calls), calls["start"].to_numpy())) for calls in captures]
    by_launch = pd.Series(np.arange(len(view.ops))).groupby(view.ops.graph_launch)
    for launch, group in by_launch:
        ops = group.to_numpy()
        if launch < 0 or len(np.unique(view.ops.stream[ops])) > 1:
            continue
        before = int(view.trace.api["start"].iat[launch])
        fits = [rows for calls, rows in made if _fits(calls, view, ops, before)]
        if fits and all(_same_ranges(view, fits[-1], other) for other in fits[:-1]):
            out[ops] = fits[-1]
    return out


def _same_ranges(view: View, rows: np.ndarray, others: np.ndarray) -> bool:
    """Whether two captures were made under ranges of the same names: either could be meant, and nothing is guessed."""
    return all(view.host.name(a) == view.host.name(b) for a, b in zip(rows, others, strict=True))


def _captured_calls(api: pd.DataFrame) -> list[pd.DataFrame]:
    """The launches, copies and memsets made on the thread of each capture until it ended."""
    is_copy = matching(api["name"].array, COPY_CALL)
    calls = api.assign(is_copy=is_copy)[is_copy | matching(api["name"].array, LAUNCH)]
    out = []
    for begin in api[api["name"] == "cudaStreamBeginCapture"].itertuples():
        own = (api["pid"] == begin.pid) & (api["tid"] == begin.tid) & (api["start"] > begin.start)
        ends = api["start"][own & (api["name"] == "cudaStreamEndCapture")]
        inside = (calls["pid"] == begin.pid) & (calls["tid"] == begin.tid) & (calls["start"] > begin.start)
        out.append(calls[inside & (calls["start"] < ends.min())])
    return out


def _fits(calls: pd.DataFrame, view: View, ops: np.ndarray, before: int) -> bool:
    """Whether a capture ended before a launch and could have made its ops."""
    if len(calls) != len(ops) or calls["start"].iat[-1] >= before:
        return False
    return bool((calls["is_copy"].to_numpy() == (view.ops.resource[ops] == COPY)).all())
