"""Refills the metadata of attention by a small CUDA graph instead of operations launched one by one.

It is captured in the first steps of a request; a wrong capture shows in the accept length only.
"""

from optim.sglang.registry import State

removes = "the host's launches between the graphs of a step"
exact = True
default = False
environment = {"SGLANG_ENABLE_METADATA_GLUE_GRAPH": ("0", "1")}


def took_effect(rank) -> State:
    runner = rank.runner.decode_cuda_graph_runner
    if not hasattr(runner, "_metadata_glue"):
        return State(None, "no decode graph is captured, or this SGLang has no metadata graph")
    if (glue := runner._metadata_glue) is None:
        return State(False, "the metadata is refilled by single operations")
    captured = sum(state["graph"] is not None for state in glue._states.values())
    said = "its capture failed" if glue.disabled else f"{captured} captured so far"
    return State(not glue.disabled, f"the metadata has graphs of its own, {said}")
