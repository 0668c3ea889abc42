"""Chooses the experts, the fused shared one among them, by one kernel.

SGLang's usual kernel chooses the routed ones only; the shared one is then appended by seven small operations a layer.
Weights are summed in another order, and a group whose two best experts tie is scored lower.
"""

import numpy as np

from ling_prof.whatif.edits import behind, drop, named
from optim.sglang.registry import State

removes = "the small kernels that append the shared expert to the routed ones"
exact = False
default = False
environment = {"SGLANG_OPT_USE_JIT_KERNEL_GROUPED_TOPK": ("0", "1")}
ONE, ROUTED = "_router_triton_kernel", "deepseek_v3_topk_kernel"
APPENDING = "at::native::|emcpy"  # fills, copies, a sum, a product


def took_effect(rank) -> State:
    one, routed = rank.launches(ONE), rank.launches(ROUTED)
    if not one and not routed:
        return State(None, f"the captured graphs launch neither {ONE} nor {ROUTED}")
    return State(not routed, f"the captured graphs launch {ONE} {one} times, {ROUTED} {routed} times")


def predict(graph, costs):
    """What follows the usual kernel, until the experts are aligned, goes."""
    small, found = named(graph, APPENDING), [named(graph, ROUTED)]
    while len(more := behind(graph, small, found[-1])):
        found.append(more)
    return drop(graph, small[np.isin(small, np.concatenate(found))])
