"""Edits of a dependency graph: each changes the draft of one that it is given, or nothing, and gives it back.

They compose: what one drops or changes the next one sees so. Ops are given by their indices, stream by stream.
"""

from typing import NamedTuple

import numpy as np

from ling_prof.whatif.costs import Costs
from ling_prof.whatif.graph import NONE, Draft, Graph

TRITON = r"^(?!nvjet|cutlass|cublas|cudnn|sm\d|ampere|hopper)[a-z0-9_]+_kernel(_\w+)?$|^triton_"  # by their names
LONG = 1 << 40  # ns, longer than any kernel


class Runs(NamedTuple):
    """Ops that belong together: the run i is ops[bounds[i] : bounds[i + 1]]."""

    ops: np.ndarray
    bounds: np.ndarray


def named(graph: Graph, pattern: str = "", layer: str = "", role: str = "") -> np.ndarray:
    """Ops that start in a round, are not gone, and whose name, layer and role fit (regular expressions; '': any)."""
    ops = graph.where(pattern, layer, role)
    return ops[~graph.gone[ops]]


def behind(graph: Graph, ops: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Those of `ops` that follow one of `others` on its stream, with nothing between them but what is gone."""
    there = np.zeros(len(graph.earlier), bool)
    there[others] = True
    return ops[there[graph.earlier[ops]]]


def runs(graph: Graph, ops: np.ndarray, across: bool = False) -> Runs:
    """These ops by runs: of one round and layer, or `across` layers, that follow each other on a stream, with nothing
    between them but what is gone."""
    return _runs(graph, ops, (graph.round if across else graph.part)[ops])


def _runs(graph: Graph, ops: np.ndarray, *equal: np.ndarray) -> Runs:
    """Ops that follow each other and have equal numbers."""
    begins = np.empty(len(ops) + 1, bool)
    begins[0] = begins[-1] = True
    between = begins[1:-1]
    np.not_equal(graph.later[ops[:-1]], ops[1:], out=between)
    for number in equal:
        between |= number[1:] != number[:-1]
    return Runs(ops, begins.nonzero()[0])


def drop(graph: Draft, ops: np.ndarray) -> Draft:
    """These ops take no time any more, nor do the calls that launched nothing else."""
    ops = ops[~graph.gone[ops]]
    if len(ops):
        _drop(graph, _runs(graph, ops))
    return graph


def _drop(graph: Draft, of: Runs) -> None:
    """What follows each other is in one run."""
    ops, bounds = of
    before, after = graph.earlier[ops[bounds[:-1]]], graph.later[ops[bounds[1:] - 1]]
    graph.earlier[after], graph.later[before] = before, after
    graph.gone[ops] = True
    graph.duration[ops] = graph.gap[ops] = 0
    alone = _launched_alone(graph, ops)
    if len(alone):
        _spare_calls(graph, alone[graph.before[alone] >= 0])


def _spare_calls(graph: Draft, ops: np.ndarray) -> None:
    """The calls of these go; what the host did before a round, or after a wait, it still does."""
    calls, before = graph.launch[ops], graph.previous[graph.launch[ops]]
    stays = calls[(graph.round[ops] != graph.round[graph.before[ops]]) | (before < 0) | graph.blocks[before]]
    kept = graph.lead[stays]
    graph.own("launch", "lead", "cost")
    graph.lead[calls] = graph.cost[calls] = 0
    graph.lead[stays] = kept
    graph.launch[ops] = NONE


def _launched_alone(graph: Graph, ops: np.ndarray) -> np.ndarray:
    """Those launched by a call of their own: neither a graph launch nor one that blocks."""
    ops = ops[graph.launch[ops] >= 0]
    return ops[~(graph.graph | graph.blocks)[graph.launch[ops]]] if len(ops) else ops


def waiting(graph: Graph, pattern: str) -> np.ndarray:
    """Calls that block and whose site fits, as a mask."""
    return graph.blocks & graph.site.fits(pattern)


def remove_wait(graph: Draft, calls: np.ndarray) -> Draft:
    """These calls (a mask) return without waiting for the device, in the shortest time that any of them took."""
    if (calls & (graph.awaits >= 0)).any():
        graph.own("awaits", "cost")
        graph.awaits[calls] = NONE
        graph.cost[calls] = graph.cost[calls].min()
    return graph


def to_graph(graph: Draft, ops: np.ndarray, costs: Costs) -> Draft:
    """Ops launched one by one become nodes of graphs, one a run; the run's first call launches it."""
    alone = _launched_alone(graph, ops)
    if not len(alone):
        return graph
    waits = (graph.awaits >= 0).cumsum()[graph.launch[alone]]  # no graph goes on behind a call that waits for it
    bounds = _runs(graph, alone, graph.round[alone], waits).bounds
    begins = np.zeros(len(alone), bool)
    begins[bounds[:-1]] = True
    heads, tails = alone[begins], alone[~begins]
    called, spared = graph.launch[heads], graph.launch[tails]
    launching = (costs.base + costs.node * (bounds[1:] - bounds[:-1])).round().astype(np.int64)
    graph.own("node", "launch", "in_call", "after", "lead", "cost", "fixed", "graph")
    graph.node[tails] = True
    graph.gap[tails] = np.minimum(graph.gap[tails], round(costs.gap))
    graph.launch[tails] = NONE
    graph.in_call[heads] = 0
    graph.after[heads] += launching
    graph.lead[spared] = graph.cost[spared] = graph.cost[called] = 0
    graph.fixed[called] = launching
    graph.graph[called] = True
    return graph


def chain(graph: Draft, costs: Costs, only_early: bool = False) -> Draft:
    """Programmatic dependent launch of kernels made with Triton, and of `early` ones; what is chained stays so."""
    fits = graph.early.copy()
    if not only_early:
        fits[graph.where(TRITON)] = True
    ops = (fits & ~graph.gone & (graph.round >= 0) & (graph.before >= 0) & (graph.gap > costs.chained)).nonzero()[0]
    gap, duration, before = graph.gap[ops], graph.duration[ops], graph.earlier[ops]
    under = np.minimum((before >= 0) * graph.duration[before], duration)  # the one before, at most
    saved = np.where(graph.early[ops], costs.early, np.minimum(costs.pdl, gap - costs.chained))
    saved = np.minimum(saved.round().astype(np.int64), gap + np.maximum(under, 0))
    head = np.where(saved > 0, np.maximum(saved - gap, 0), 0)
    graph.own("head")
    graph.gap[ops] -= saved
    graph.head[ops] += head
    graph.duration[ops] -= head
    return graph


def unchain(graph: Draft, costs: Costs) -> Draft:
    """No kernel begins before the one before it has ended: what was hidden under that shows, and a gap between them."""
    chained = (graph.before >= 0) & (graph.gap < 0)
    if not chained.any():
        return graph
    shown = np.maximum(graph.head, np.minimum(-graph.gap, round(costs.hidden)))
    shown = np.maximum(shown, -graph.duration)[chained]  # of one that ended before the one before did
    apart = graph.gap[(graph.gap >= 0) & graph.node & (graph.round >= 0)]
    more = max(0.0, float(np.median(apart)) - costs.gap) if len(apart) > chained.sum() else 0.0  # than in the table
    graph.gap[chained] = round(costs.apart + more)
    graph.duration[chained] += shown
    graph.own("head")
    graph.head[:] = 0
    return graph


def merge(graph: Draft, ops: np.ndarray, costs: Costs) -> Draft:
    """These kernels become part of the next one on their stream, which goes on from their result: of what they take
    only an empty kernel's time is spared."""
    ops = ops[graph.later[ops] >= 0]
    if not len(ops):
        return graph
    of = _runs(graph, ops)
    first, last = of.bounds[:-1], of.bounds[1:] - 1
    more = graph.duration[ops] - round(costs.empty)
    total = more.cumsum()
    least = np.minimum(np.minimum.reduceat(total, first), total[first] - more[first])
    into = graph.later[ops[last]]
    graph.duration[into] += total[last] - least  # none brings less than nothing along
    _drop(graph, of)
    return graph


def fuse(graph: Draft, of: Runs, costs: Costs, into: int = 1, moves: bool = True, early: bool = False) -> Draft:
    """Of each run `into` kernels stay, the longest, which take what a kernel takes and, when it `moves` bytes, the rest
    of the run's time; the others go. Runs of no more kernels stay as they are."""
    ops, size, kernel = of.ops, of.bounds[1:] - of.bounds[:-1], round(costs.kernel)
    shrinks = size > into
    if not shrinks.all():
        ops, size = ops[shrinks.repeat(size)], size[shrinks]
    if not len(ops):
        return graph
    duration, first = graph.duration[ops], size.cumsum() - size
    order = ((np.arange(len(size)) * LONG).repeat(size) - duration).argsort(kind="stable")  # the longest of a run first
    goes = np.arange(len(ops)) - first.repeat(size) >= into
    stay, rest = ops[order[~goes]], order[goes]
    work = moves * np.add.reduceat(np.maximum(duration - kernel, 0), first)
    graph.duration[stay] = (kernel + (work / into).round().astype(np.int64)).repeat(into)
    if early:
        graph.own("early")
        graph.early[stay] = True
    rest.sort()
    _drop(graph, _runs(graph, ops[rest]))
    return graph


def scale(graph: Draft, ops: np.ndarray, factor: float, costs: Costs) -> Draft:
    """What these kernels take besides the cost of a kernel is multiplied: bytes of another dtype; 0 for no bytes."""
    moving = np.maximum(graph.duration[ops] - round(costs.kernel), 0)
    graph.duration[ops] += (moving * factor).round().astype(np.int64) - moving
    return graph


def shorten(graph: Draft, ops: np.ndarray, less: float, costs: Costs, early: bool = False) -> Draft:
    """These kernels take `less` ns less, but no less than a kernel takes."""
    duration = graph.duration[ops]
    graph.duration[ops] = np.maximum(duration - round(less), np.minimum(duration, round(costs.kernel)))
    if early:
        graph.own("early")
        graph.early[ops] = True
    return graph


def punctual(graph: Draft) -> Draft:
    """Collectives take as long as the shortest of their name: what they take longer may be waiting for a late rank."""
    ops = named(graph, role="all_reduce")
    least, name = np.full(len(graph.name.values), np.iinfo(np.int64).max), graph.name.codes[ops]
    np.minimum.at(least, name, graph.duration[ops])
    graph.duration[ops] = least[name]
    return graph


def untraced(graph: Draft, less: float) -> Draft:
    """Every gap before a later node of a graph shorter by `less` ns, which the profiler adds, or gone."""
    node = graph.node & (graph.gap >= 0)
    graph.gap[node] = np.maximum(graph.gap[node] - round(less), 0)
    return graph
