"""Schedules the next batch on the host while the device computes this one."""

from optim.sglang.registry import State

removes = "the host's scheduling between two steps"
exact = True
default = True
arguments = {"disable_overlap_schedule": (True, False)}


def took_effect(rank) -> State:
    on = rank.scheduler.enable_overlap
    return State(on, f"the scheduler's enable_overlap is {on}")
