"""Applies SwiGLU where the up projection of the experts is computed; its rows are interleaved when loaded."""

from optim.sglang.registry import State

removes = "the activation's launch, and its way through memory"
exact = True
default = False
environment = {"SGLANG_OPT_FUSE_SWIGLU_INTERLEAVED": ("0", "1")}


def took_effect(rank) -> State:
    methods = [getattr(module, "quant_method", None) for model in rank.models for module in model.modules()]
    known = [getattr(method, "w13_swiglu_interleaved", None) for method in methods]
    flags = [flag for flag in known if flag is not None]
    if not flags:
        return State(None, "this model has no unquantized experts")
    return State(any(flags), f"{sum(flags)} of {len(flags)} layers of experts hold gate and up rows in turn")
