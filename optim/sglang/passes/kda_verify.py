"""Verifies a chain of drafted tokens by one KDA kernel: convolution, gates and recurrence.

Its outputs are those of the separate kernels; the fp32 states that it caches differ in the last bits.
"""

from optim.sglang.inside import PLAIN
from optim.sglang.registry import State

removes = "the launches between convolution and delta rule when drafts are verified"
exact = False
default = False
speculative = True
environment = {"SGLANG_OPT_FUSED_KDA_VERIFY": ("0", "1")}
KERNEL = "fused_kda_conv_gating_verify_kernel"


def took_effect(rank) -> State:
    if rank.speculator is None:
        return State(None, f"{PLAIN}: nothing is verified")
    times = rank.launches(KERNEL)
    return State(times > 0, f"the captured graphs launch {KERNEL} {times} times")
