"""Launches the next step before the host knows the token of this one, which reaches it through a side stream."""

from collections.abc import Iterator
from contextlib import contextmanager

import pandas as pd

from ling_prof.whatif.edits import remove_wait
from optim.base import NotOn, exchanged
from optim.sites import idle

removes = "the wait of the device for the host between two steps"
lowers = "sync_stall"
rung = 2
exact = True


def find(trace) -> pd.DataFrame:
    return idle(trace, "remove_wait", "sync_stall")


def predict(graph, costs):
    return remove_wait(graph, graph.blocks & ~graph.by_event)


def blocked(engine) -> str:
    return "" if engine.can_graph else "run-ahead needs a GPU and launches that do not wait"


@contextmanager
def apply(engine) -> Iterator[None]:
    from optim.engine.relay import Relay

    with exchanged(engine, advance=Relay(engine)):
        yield


def took_effect(engine) -> str:
    from optim.engine.relay import Relay

    if not isinstance(engine.advance, Relay):
        raise NotOn("the host reads every token back before the next launch.")
    return "the host learns each token from a side stream, one launch late"
