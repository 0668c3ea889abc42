"""How the Triton kernels are launched: one after the other, or chained by programmatic dependent launch (PDL).

With PDL a kernel may begin while the one before still runs. Every kernel so launched first does what depends on nothing
young, then calls `chain`: it waits until the one before has finished and flushed, and only then lets the next begin.
So when a kernel begins, all but the one just before it has finished: weights may be read before the wait, and what was
written two launches ago or earlier (a state, metadata, the router's choice) past the processor's own cache (".cg").
Nothing may be written, and nothing of the kernel just before be read.
"""

from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

import triton
import triton.language as tl

WAITS, SLEEPS, HASTY = 1, 2, 3
chained = 0  # the pass `pdl` sets it to WAITS

launched: defaultdict[str, Counter[str]] = defaultdict(Counter)  # module -> kernel -> launches so far, not replays

# The other two are for tests: a kernel then sleeps between letting the next begin and its own work, so that whoever
# does not wait for it reads what was there before. HASTY leaves the wait out, which must show.


def launch(kernel: Any, grid: tuple[int, ...]) -> Callable[..., Any]:
    """`launch(kernel, grid)(...)` is `kernel[grid](...)`, chained or not. The kernel calls chain(PDL) on every path."""
    note(kernel)
    return partial(kernel[grid], PDL=chained, **({"launch_pdl": True} if chained else {}))


def note(kernel: Any) -> None:
    launched[kernel.fn.__module__][kernel.fn.__name__] += 1


def names() -> set[str]:
    """Every kernel launched so far."""
    return {name for kernels in launched.values() for name in kernels}


@triton.jit
def chain(PDL: tl.constexpr):
    if PDL > 0:
        if PDL < 3:
            tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
        if PDL > 1:
            now = tl.extra.cuda.globaltimer()
            end = now + 20_000
            while now < end:
                now = tl.extra.cuda.globaltimer()
