"""How the Triton kernels are launched: one after the other, or chained by programmatic dependent launch (PDL).

With PDL a kernel may begin while the one before still runs. Every kernel so launched first does what depends on nothing
young, then calls `chain`: it waits until the one before has finished and flushed, and only then lets the next begin.
So when a kernel begins, all but the one just before it has finished: weights may be read before the wait, and what was
written two launches ago or earlier (a state, metadata, the router's choice) past the processor's own cache (".cg").
Nothing may be written, and nothing of the kernel just before be read.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import triton
import triton.language as tl

chained = False  # the pass `pdl` sets it


def launch(kernel: Any, grid: tuple[int, ...]) -> Callable[..., Any]:
    """`launch(kernel, grid)(...)` is `kernel[grid](...)`, chained or not. The kernel calls chain(PDL) on every path."""
    return partial(kernel[grid], PDL=chained, **({"launch_pdl": True} if chained else {}))


@triton.jit
def chain(PDL: tl.constexpr):
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
