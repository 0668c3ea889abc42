"""Edits of a dependency graph: each gives another graph, and the same one where it finds nothing to change.

They compose: what one drops or changes the next one sees so. Masks and groups have one entry per op, or per call.
"""

import re

import numpy as np

from ling_prof.whatif.costs import Costs
from ling_prof.whatif.graph import NONE, Graph

TRITON = re.compile(r"^(?!nvjet|cutlass|cublas|sm\d|ampere|hopper)[a-z0-9_]+$")


def named(graph: Graph, pattern: str = "", layer: str = "", role: str = "") -> np.ndarray:
    """Ops that start in a round, are not gone, and whose name, layer and role fit (regular expressions; '': any)."""
    mask = (graph.round >= 0) & ~graph.gone
    for values, asked in ((graph.name, pattern), (graph.layer, layer), (graph.role, role)):
        if asked:
            fits = {value: bool(re.search(asked, value)) for value in set(values)}
            mask &= np.array([fits[value] for value in values])
    return mask


def after(graph: Graph, pattern: str) -> np.ndarray:
    """Ops behind one whose name fits, on its stream."""
    return (graph.before >= 0) & named(graph, pattern)[graph.before] & ~graph.gone


def runs(graph: Graph, mask: np.ndarray) -> np.ndarray:
    """The number of the run each op of `mask` is in, -1 for the others: ops of one layer that follow each other on a
    stream, with nothing between them but what is gone."""
    group, number = np.full(len(mask), NONE), -1
    last: dict[int, int] = {}  # op -> the nearest op before it that is not gone
    for i in np.flatnonzero(mask | graph.gone).tolist():
        before = int(graph.before[i])
        last[i] = last.get(before, before) if before >= 0 and graph.gone[before] else before
        if graph.gone[i]:
            continue
        follows = last[i] >= 0 and group[last[i]] >= 0 and graph.layer[last[i]] == graph.layer[i]
        number += not follows
        group[i] = group[last[i]] if follows else number
    return group


def drop(graph: Graph, mask: np.ndarray) -> Graph:
    """These ops take no time any more, nor do the calls that launched nothing else."""
    if not mask.any():
        return graph
    single = _launched_alone(graph, mask)
    calls = graph.launch[single]
    free = single & (graph.before >= 0)
    return graph.with_(
        gone=graph.gone | mask,
        duration=np.where(mask, 0, graph.duration),
        gap=np.where(mask, 0, graph.gap),
        launch=np.where(free, NONE, graph.launch),
        lead=_without(graph.lead, calls),
        cost=_without(graph.cost, calls),
    )


def _launched_alone(graph: Graph, mask: np.ndarray) -> np.ndarray:
    """Ops of `mask` launched by a call of their own: neither a graph launch nor one that blocks."""
    own = mask & (graph.launch >= 0)
    at = np.where(own, graph.launch, 0)
    return own & ~graph.graph[at] & ~graph.blocks[at] if len(graph.began) else own & False


def _without(times: np.ndarray, calls: np.ndarray) -> np.ndarray:
    out = times.copy()
    out[calls] = 0
    return out


def waiting(graph: Graph, pattern: str) -> np.ndarray:
    """Calls that block and whose site fits, as a mask."""
    fits = {site: bool(re.search(pattern, site)) for site in set(graph.site)}
    return graph.blocks & np.array([fits[site] for site in graph.site], bool)


def remove_wait(graph: Graph, calls: np.ndarray) -> Graph:
    """These calls (a mask) return without waiting for the device."""
    if not (calls & (graph.awaits >= 0)).any():
        return graph
    least = int(graph.cost[calls].min())
    return graph.with_(
        awaits=np.where(calls, NONE, graph.awaits), cost=np.where(calls, np.minimum(graph.cost, least), graph.cost)
    )


def to_graph(graph: Graph, mask: np.ndarray, costs: Costs) -> Graph:
    """Ops launched one by one become nodes of graphs, one a run; the run's first call launches it."""
    single = _launched_alone(graph, mask)
    if not single.any():
        return graph
    group = runs(graph, single)
    inside = np.flatnonzero(group >= 0)
    _, first, counts = np.unique(group[inside], return_index=True, return_counts=True)
    heads, tails = inside[first], np.setdiff1d(inside, inside[first])
    lead, cost = (_without(times, graph.launch[tails]) for times in (graph.lead, graph.cost))
    called = graph.launch[heads]
    cost[called] = np.round(costs.base + costs.node * counts).astype(np.int64)
    later = np.isin(np.arange(len(mask)), tails)
    gap = np.where(later, np.minimum(graph.gap, round(costs.gap)), graph.gap)
    in_call = graph.in_call.copy()
    in_call[heads] = cost[called]
    launch = np.where(later, NONE, graph.launch)
    kinds = graph.graph.copy()
    kinds[called] = True
    return graph.with_(
        node=graph.node | later, gap=gap, launch=launch, in_call=in_call, lead=lead, cost=cost, graph=kinds
    )


def chain(graph: Graph, costs: Costs) -> Graph:
    """Programmatic dependent launch of kernels made with Triton, and of those that are `early`."""
    fits = {name: bool(TRITON.match(name)) for name in set(graph.name)}
    triton = np.array([fits[name] for name in graph.name])
    follows = (graph.before >= 0) & (graph.round >= 0) & ~graph.gone & (graph.gap >= 0)
    saved = np.where(follows, np.where(graph.early, costs.early, np.where(triton, costs.pdl, 0.0)), 0.0)
    saved = np.minimum(np.round(saved).astype(np.int64), graph.gap + _neighbour(graph))
    return graph.with_(gap=graph.gap - saved) if saved.any() else graph


def _neighbour(graph: Graph) -> np.ndarray:
    """The duration of the op before that is not gone: an op cannot begin before that one does."""
    before = graph.before.copy()
    while (skip := (before >= 0) & graph.gone[before]).any():
        before = np.where(skip, graph.before[before], before)
    return np.where(before >= 0, graph.duration[before], 0)


def unchain(graph: Graph, costs: Costs) -> Graph:
    """No kernel begins before the one before it has ended."""
    chained = (graph.before >= 0) & (graph.gap < 0)
    apart = graph.gap[(graph.gap >= 0) & graph.node & (graph.round >= 0)]
    usual = int(np.median(apart)) if len(apart) else round(costs.gap)
    return graph.with_(gap=np.where(chained, usual, graph.gap)) if chained.any() else graph


def fuse(
    graph: Graph, group: np.ndarray, costs: Costs, into: int = 1, moves: bool = True, early: bool = False
) -> Graph:
    """Of each run that `runs` numbered, `into` kernels stay, which take what a kernel takes and, when it `moves` bytes,
    the rest of the run's time; the others go. Runs of no more kernels stay as they are."""
    inside = np.flatnonzero(group >= 0)
    if not len(inside):
        return graph
    kernel = round(costs.kernel)
    count = np.bincount(group[inside])
    work = np.zeros(len(count))
    if moves:
        np.add.at(work, group[inside], np.maximum(graph.duration[inside] - kernel, 0))
    longest = inside[np.lexsort((-graph.duration[inside], group[inside]))]
    place = np.arange(len(longest)) - np.searchsorted(group[longest], group[longest])
    shrinks = count[group[longest]] > into
    kept, rest = longest[shrinks & (place < into)], longest[shrinks & (place >= into)]
    if not len(rest):
        return graph
    duration, marked = graph.duration.copy(), graph.early.copy()
    duration[kept] = kernel + np.round(work[group[kept]] / into).astype(np.int64)
    marked[kept] |= early
    return drop(graph.with_(duration=duration, early=marked), np.isin(np.arange(len(group)), rest))


def scale(graph: Graph, mask: np.ndarray, factor: float, costs: Costs) -> Graph:
    """What these kernels take besides the cost of a kernel is multiplied: bytes of another dtype; 0 for no bytes."""
    if not mask.any():
        return graph
    moving = np.maximum(graph.duration - round(costs.kernel), 0)
    duration = graph.duration - moving + np.round(moving * factor).astype(np.int64)
    return graph.with_(duration=np.where(mask, duration, graph.duration))


def shorten(graph: Graph, mask: np.ndarray, less: float, costs: Costs, early: bool = False) -> Graph:
    """These kernels take `less` ns less, but no less than a kernel takes."""
    if not mask.any():
        return graph
    least = np.minimum(graph.duration, round(costs.kernel))
    duration = np.where(mask, np.maximum(graph.duration - round(less), least), graph.duration)
    return graph.with_(duration=duration, early=graph.early | (mask & early))


def untraced(graph: Graph, costs: Costs) -> Graph:
    """Without what the profiler adds to every node of a graph."""
    node = graph.node & (graph.gap >= 0)
    less = np.minimum(graph.gap, round(costs.traced))
    return graph.with_(gap=np.where(node, graph.gap - less, graph.gap))
