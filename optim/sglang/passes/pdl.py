"""Lets a kernel begin while the one before it ends (programmatic dependent launch).

SGLang and FlashInfer ask the architecture only. Where SGLang's MoE picks another kernel for the final sum by the same
question, that choice is kept: it would round in another way.
"""

import importlib
import inspect
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from optim.sglang.patch import everywhere, exchanged
from optim.sglang.registry import State

removes = "launch gaps between the kernels of a graph"
exact = True
default = True

ASKED = (
    "sglang.kernels.jit.utils.arch:is_arch_support_pdl",
    "sgl_kernel.utils:is_arch_support_pdl",
    "flashinfer.utils:device_support_pdl",
)
CHOOSES = "sglang.srt.layers.moe.moe_runner.triton_utils.fused_moe"
TOP_K = "sglang.srt.layers.moe.topk:_fused_topk_deepseek"  # chained by its own default
LIBRARY = re.compile("nvjet|cublas|cutlass|gemvx|splitKreduce")  # they chain themselves as they like


@contextmanager
def change() -> Iterator[None]:
    importlib.import_module(CHOOSES)  # it binds the function that it shall keep
    with ExitStack() as stack:
        for question in ASKED:
            stack.enter_context(everywhere(question, _never, leave={CHOOSES}))
        stack.enter_context(exchanged(TOP_K, _unchained))
        yield


def _never(_):
    """A function of its own each time: it is undone by what it is."""
    return lambda *_: False


def _unchained(function):
    """SGLang calls it by position, and its own `renormalize` lands on this argument."""
    signature = inspect.signature(function)

    def plain(*args, **more):
        given = signature.bind(*args, **more)
        given.arguments["launch_with_pdl"] = False
        return function(*given.args, **given.kwargs)

    return plain


def took_effect(rank) -> State:
    """Edges into kernels of the vendor's libraries do not count."""
    edges = [edge for of in rank.edges.values() for edge in of if not LIBRARY.search(edge.after)]
    chained = Counter(edge.after for edge in edges if edge.programmatic)
    said = f"{chained.total()} of {len(edges)} edges of the captured graphs, but for those into libraries,"
    into = ", ".join(f"{name:.60} {times} times" for name, times in chained.most_common())
    return State(bool(chained), f"{said} are programmatic{f', into {into}' if chained else ''}")
