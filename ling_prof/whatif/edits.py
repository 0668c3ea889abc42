"""Edits of a dependency graph: each gives another graph, and the same one where it finds nothing to change.

They compose: what one drops or changes the next one sees so. Masks and groups have one entry per op, or per call.
"""

import numpy as np

from ling_prof.whatif.costs import Costs
from ling_prof.whatif.graph import NONE, Graph, Text

TRITON = r"^(?!nvjet|cutlass|cublas|cudnn|sm\d|ampere|hopper)[a-z0-9_]+_kernel(_\w+)?$|^triton_"  # by their names


def named(graph: Graph, pattern: str = "", layer: str = "", role: str = "") -> np.ndarray:
    """Ops that start in a round, are not gone, and whose name, layer and role fit (regular expressions; '': any)."""
    mask = (graph.round >= 0) & ~graph.gone
    for text, asked in ((graph.name, pattern), (graph.layer, layer), (graph.role, role)):
        if asked:
            mask &= text.fits(asked)
    return mask


def behind(graph: Graph, mask: np.ndarray) -> np.ndarray:
    """The op that follows each of `mask` on its stream and is not gone; -1 for none, and for the others."""
    nearest, found = _nearest(graph), np.full(len(mask), NONE)
    has = np.flatnonzero((nearest >= 0) & ~graph.gone)
    found[nearest[has]] = has
    return np.where(mask, found, NONE)


def runs(graph: Graph, mask: np.ndarray, apart: np.ndarray | None = None) -> np.ndarray:
    """The number of the run each op of `mask` is in, -1 for the others: ops of one round and layer that follow each
    other on a stream, with nothing between them but what is gone, and equal numbers in `apart`."""
    group, inside = np.full(len(mask), NONE), np.flatnonzero(mask)
    before = _nearest(graph)[inside]
    follows = (before >= 0) & mask[before]
    for kind in (graph.round, graph.layer.codes, *([] if apart is None else [apart])):
        follows &= kind[before] == kind[inside]
    group[inside[~follows]] = np.arange((~follows).sum())
    found = group.tolist()
    for i, at in zip(inside[follows].tolist(), before[follows].tolist(), strict=True):
        found[i] = found[at]
    return np.array(found, np.int64)


def _nearest(graph: Graph) -> np.ndarray:
    """The op before each on its stream that is not gone; -1 for none."""
    before = graph.before.copy()
    while (skip := (before >= 0) & graph.gone[before]).any():
        before = np.where(skip, graph.before[before], before)
    return before


def drop(graph: Graph, mask: np.ndarray) -> Graph:
    """These ops take no time any more, nor do the calls that launched nothing else."""
    if not mask.any():
        return graph
    free = _launched_alone(graph, mask) & (graph.before >= 0)
    calls = graph.launch[free]
    first = free & (graph.round != graph.round[graph.before])  # what the host did before a round, it still does
    after_wait = calls[graph.blocks[graph.previous[calls]] | (graph.previous[calls] < 0)] if len(calls) else calls
    lead = _without(graph.lead, np.setdiff1d(calls, np.r_[graph.launch[first], after_wait]))
    return graph.with_(
        gone=graph.gone | mask,
        duration=np.where(mask, 0, graph.duration),
        gap=np.where(mask, 0, graph.gap),
        launch=np.where(free, NONE, graph.launch),
        lead=lead,
        cost=_without(graph.cost, calls),
    )


def _launched_alone(graph: Graph, mask: np.ndarray) -> np.ndarray:
    """Ops of `mask` launched by a call of their own: neither a graph launch nor one that blocks."""
    own = mask & (graph.launch >= 0)
    if own.any():
        own &= ~(graph.graph | graph.blocks)[graph.launch]
    return own


def _without(times: np.ndarray, calls: np.ndarray) -> np.ndarray:
    out = times.copy()
    out[calls] = 0
    return out


def waiting(graph: Graph, pattern: str) -> np.ndarray:
    """Calls that block and whose site fits, as a mask."""
    return graph.blocks & graph.site.fits(pattern)


def remove_wait(graph: Graph, calls: np.ndarray) -> Graph:
    """These calls (a mask) return without waiting for the device, in the shortest time that any of them took."""
    if not (calls & (graph.awaits >= 0)).any():
        return graph
    least = np.minimum(graph.cost, graph.cost[calls].min())
    return graph.with_(awaits=np.where(calls, NONE, graph.awaits), cost=np.where(calls, least, graph.cost))


def to_graph(graph: Graph, mask: np.ndarray, costs: Costs) -> Graph:
    """Ops launched one by one become nodes of graphs, one a run; the run's first call launches it."""
    single = _launched_alone(graph, mask)
    if not single.any():
        return graph
    waits = np.cumsum(graph.awaits >= 0)[graph.launch]  # no graph goes on behind a call that waits for it
    group = runs(graph.with_(layer=Text(np.zeros(len(mask), np.int64), np.array([""], object))), single, waits)
    inside = np.flatnonzero(group >= 0)
    _, first, counts = np.unique(group[inside], return_index=True, return_counts=True)
    heads, tails = inside[first], np.setdiff1d(inside, inside[first])
    later, called = np.isin(np.arange(len(mask)), tails), graph.launch[heads]
    lead, cost = (_without(times, graph.launch[tails]) for times in (graph.lead, graph.cost))
    fixed, in_call, after, launches = (a.copy() for a in (graph.fixed, graph.in_call, graph.after, graph.graph))
    fixed[called] = np.round(costs.base + costs.node * counts).astype(np.int64)
    after[heads] += fixed[called]
    cost[called] = in_call[heads] = 0
    launches[called] = True
    return graph.with_(
        node=graph.node | later,
        gap=np.where(later, np.minimum(graph.gap, round(costs.gap)), graph.gap),
        launch=np.where(later, NONE, graph.launch),
        in_call=in_call,
        after=after,
        lead=lead,
        cost=cost,
        fixed=fixed,
        graph=launches,
    )


def chain(graph: Graph, costs: Costs, only_early: bool = False) -> Graph:
    """Programmatic dependent launch of kernels made with Triton, and of `early` ones; what is chained stays so."""
    follows = (graph.before >= 0) & (graph.round >= 0) & ~graph.gone & (graph.gap > costs.chained)
    usual = np.minimum(costs.pdl, graph.gap - costs.chained)
    saved = np.where(graph.early, costs.early, np.where(graph.name.fits(TRITON) & (not only_early), usual, 0.0))
    before = _nearest(graph)
    under = np.minimum(np.where(before >= 0, graph.duration[before], 0), graph.duration)  # the one before, at most
    saved = np.where(follows, np.minimum(np.round(saved).astype(np.int64), graph.gap + np.maximum(under, 0)), 0)
    if not saved.any():
        return graph
    head = np.where(saved > 0, np.maximum(saved - graph.gap, 0), 0)
    return graph.with_(gap=graph.gap - saved, head=graph.head + head, duration=graph.duration - head)


def unchain(graph: Graph, costs: Costs) -> Graph:
    """No kernel begins before the one before it has ended: what was hidden under that shows, and a gap between them."""
    chained = (graph.before >= 0) & (graph.gap < 0)
    if not chained.any():
        return graph
    shown = np.where(chained, np.maximum(graph.head, np.minimum(-graph.gap, round(costs.hidden))), 0)
    shown = np.maximum(shown, np.where(chained, -graph.duration, 0))  # of one that ended before the one before did
    apart = graph.gap[(graph.gap >= 0) & graph.node & (graph.round >= 0)]
    more = max(0.0, float(np.median(apart)) - costs.gap) if len(apart) > chained.sum() else 0.0  # than in the table
    gap = np.where(chained, round(costs.apart + more), graph.gap)
    return graph.with_(gap=gap, head=graph.head * 0, duration=graph.duration + shown)


def merge(graph: Graph, mask: np.ndarray, costs: Costs) -> Graph:
    """These kernels become part of the next one on their stream, which goes on from their result: of what they take
    only an empty kernel's time is spared."""
    target = behind(graph, mask)
    merged = np.flatnonzero(target >= 0)
    if not len(merged):
        return graph
    duration, empty = graph.duration.tolist(), round(costs.empty)
    for i, into in zip(merged.tolist(), target[merged].tolist(), strict=True):
        duration[into] += max(0, duration[i] - empty)
    return drop(graph.with_(duration=np.array(duration, np.int64)), target >= 0)


def fuse(
    graph: Graph, group: np.ndarray, costs: Costs, into: int = 1, moves: bool = True, early: bool = False
) -> Graph:
    """Of each run that `runs` numbered, `into` kernels stay, which take what a kernel takes and, when it `moves` bytes,
    the rest of the run's time; the others go. Runs of no more kernels stay as they are."""
    inside = np.flatnonzero(group >= 0)
    if not len(inside):
        return graph
    kernel = round(costs.kernel)
    work = np.zeros(group.max() + 1)
    np.add.at(work, group[inside], moves * np.maximum(graph.duration[inside] - kernel, 0))
    longest = inside[np.lexsort((-graph.duration[inside], group[inside]))]
    place = np.arange(len(longest)) - np.searchsorted(group[longest], group[longest])
    shrinks = np.bincount(group[inside])[group[longest]] > into
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


def punctual(graph: Graph) -> Graph:
    """Collectives take as long as the shortest of their name: what they take longer may be waiting for a late rank."""
    mask = named(graph, role="all_reduce")
    if not mask.any():
        return graph
    least = np.full(len(graph.name.values), np.iinfo(np.int64).max)
    np.minimum.at(least, graph.name.codes[mask], graph.duration[mask])
    return graph.with_(duration=np.where(mask, np.minimum(graph.duration, least[graph.name.codes]), graph.duration))


def untraced(graph: Graph, less: float) -> Graph:
    """Every gap before a later node of a graph shorter by `less` ns, which the profiler adds, or gone."""
    node = graph.node & (graph.gap >= 0)
    return graph.with_(gap=np.where(node, np.maximum(graph.gap - round(less), 0), graph.gap))
