"""Captures the draft model's pass over the accepted tokens, the third of a speculative step, as a CUDA graph."""

from optim.sglang.inside import PLAIN
from optim.sglang.registry import State

removes = "the host's launches of the draft model's pass over accepted tokens"
exact = True
default = True
speculative = True
environment = {"SGLANG_DISABLE_DRAFT_EXTEND_CUDA_GRAPH": ("1", "0")}


def took_effect(rank) -> State:
    if rank.speculator is None:
        return State(None, f"{PLAIN}: there is no draft model")
    there = getattr(rank.speculator, "cuda_graph_runner_for_draft_extend", None) is not None
    return State(there, f"the draft model's extension {'has a graph' if there else 'is launched by the host'}")
