"""The plugin that SGLang loads in each of its processes: switches the passes that LING_OPTIM names.

SGLang's own switches are set before it reads them; the rest is changed in the process of each scheduler before its
model is built, so before graphs are captured. SGLang only logs what fails in a plugin, hence the proof. Without
LING_OPTIM, LING_OPTIM_PROOF and LING_OPTIM_WEIGHTS nothing is touched.
"""

import inspect
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NoReturn

from ling_prof.errors import UserError
from optim.sglang import patch, proof, selection, weights
from optim.sglang.forced import FORCED, Forced
from optim.sglang.inside import Rank, kept_graphs
from optim.sglang.registry import WRITTEN_FOR, NotThere, named
from optim.sglang.selection import Selection

SCHEDULER = "sglang.srt.managers.scheduler:Scheduler.__init__"
ARGUMENTS = "sglang.srt.server_args:ServerArgs.__post_init__"
CALLED = "ling_optim_proof"  # a method that a scheduler gets: leaves its proof anew
RANKS = (("TP", "tp_rank"), ("PP", "pp_rank"), ("DP", "dp_rank"))

logger = logging.getLogger(__name__)
_lasting = ExitStack()  # the changes of this process, held until it ends


def start() -> None:
    """The entry point: registers hooks, in SGLang's launcher as in its schedulers.

    Ends the process with one sentence and exit code 2 for a selection that cannot be, before anything heavy is done.
    """
    if not any(os.environ.get(name) for name in (selection.VARIABLE, proof.VARIABLE, weights.VARIABLE)):
        return
    try:
        asked = selection.asked()
        weights.seed()
        proof.check()
        for target in (SCHEDULER, ARGUMENTS):
            patch.owner(target)
    except UserError as error:
        _stop(str(error))
    if proof.version() != WRITTEN_FOR:
        logger.warning(f"ling-prof's passes are written for SGLang {WRITTEN_FOR}; this is {proof.version()}.")
    os.environ.update(selection.environment(asked))
    _hook(asked)


def _hook(asked: Selection) -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    arguments = selection.arguments(asked)
    if arguments:
        HookRegistry.register(ARGUMENTS.replace(":", "."), partial(_arguments, arguments), HookType.BEFORE)
    HookRegistry.register(SCHEDULER.replace(":", "."), partial(_scheduler, asked), HookType.AROUND)


def _arguments(values: dict[str, Any], record: Any, *_: Any) -> None:
    for name, value in values.items():
        setattr(record, name, value)


def _scheduler(asked: Selection, init: Callable[..., None], scheduler: Any, *args: Any, **more: Any) -> None:
    """A scheduler, built with the passes as asked; they stay so until its process ends."""
    rank = _rank(inspect.signature(init).bind(scheduler, *args, **more).arguments)
    try:
        _lasting.enter_context(applied(asked))
    except UserError as error:
        proof.save(proof.refusal(rank, str(error)))
        _stop(str(error))
    with kept_graphs():
        init(scheduler, *args, **more)
    prove = partial(_prove, scheduler, rank, asked)
    setattr(scheduler, CALLED, prove)
    setattr(scheduler, FORCED, Forced(Rank(scheduler).runner))
    prove()


def _prove(scheduler: Any, rank: str, asked: Selection) -> None:
    found = proof.of(Rank(scheduler), rank, asked)
    for fault in proof.faults(found):
        logger.error(f"ling-prof: {fault}")
    proof.save(found)


def _rank(arguments: dict[str, Any]) -> str:
    """'TP-0', with the other ranks of this scheduler that are not 0."""
    found = [(short, arguments.get(name) or 0) for short, name in RANKS]
    return "-".join(f"{short}-{rank}" for short, rank in found if rank or short == "TP")


@contextmanager
def applied(asked: Selection) -> Iterator[None]:
    """The changes that the selection needs beside SGLang's own switches. Raises NotThere, naming pass and version."""
    with ExitStack() as stack:
        stack.enter_context(weights.drawn())
        for name, module in named(list(asked)).items():
            if asked[name] != module.default and hasattr(module, "change"):
                with _told(name):
                    stack.enter_context(module.change())
        yield


@contextmanager
def _told(name: str) -> Iterator[None]:
    try:
        yield
    except NotThere as missing:
        here = f"SGLang {proof.version()} cannot switch {name}, which is written for {WRITTEN_FOR}"
        raise NotThere(f"{here}: {missing}; leave {name} out of {selection.VARIABLE}.") from None


def _stop(sentence: str) -> NoReturn:
    """No plain exception: SGLang would log it and go on."""
    print(f"ling-prof: {sentence}", file=sys.stderr, flush=True)
    raise SystemExit(2)
