"""Where does every nanosecond of a step go?

One row a step of every phase. The classes are exclusive and add up to the wall time, to the nanosecond.
"""

import numpy as np
import pandas as pd

from ling_prof.roles import ROLES
from ling_prof.timeline import BUSY, CLASSES, HOST_BOUND, HOST_CLASSES, HOST_PARTS
from ling_prof.view import View

COLUMNS = {
    "index": "position in the trace",
    "phase": "prefill, decode, draft, verify, extend or step",
    "name": "range that marks it",
    "device": "GPU",
    "start": "ns from the trace's start",
    "end": "ns",
    "round": "token round; -1 for prefill",
    "note": "empty, or why the step is left out of means",
    "wall": "ns",
    **dict.fromkeys(CLASSES, "ns"),
    **{f"host_{part}": "ns of host_bound" for part in HOST_PARTS},
    **{f"role_{role}": "ns of busy" for role in ROLES},
    "overlapped": "ns that ops ran beside an earlier one: durations minus busy",
    "kernels": "launched by the step's own range",
    "extra_kernels": "others before the next step starts",
    **{f"calibrated_{name}": "ns, scaled to the unprofiled step; -1 without one" for name in CLASSES},
}


def rows(view: View) -> pd.DataFrame:
    steps = view.steps.table
    pieces, at = view.pieces_in(steps)
    classes = _sums(at, pieces.cls, pieces.length, len(steps), len(CLASSES))
    busy = pieces.cls == BUSY
    role = _sums(at[busy], view.ops.role[pieces.op[busy]], pieces.length[busy], len(steps), len(ROLES))
    out = steps[["phase", "name", "device", "start", "end", "round", "note"]].reset_index(drop=True)
    out.insert(0, "index", np.arange(len(steps)))
    out["wall"] = out["end"] - out["start"]
    _assert_adds_up(out, classes)
    out[list(CLASSES)] = classes
    out[[f"host_{part}" for part in HOST_PARTS]] = _host(view, steps)
    out[[f"role_{r}" for r in ROLES]] = role
    out["overlapped"] = _durations(view, steps) - classes[:, BUSY]
    out[["kernels", "extra_kernels"]] = steps[["kernels", "extra_kernels"]].to_numpy()
    out[[f"calibrated_{name}" for name in CLASSES]] = _calibrated(view, out, classes)
    return out[list(COLUMNS)]


def _sums(row: np.ndarray, column: np.ndarray, value: np.ndarray, n_rows: int, n_columns: int) -> np.ndarray:
    out = np.zeros((n_rows, n_columns), np.int64)
    np.add.at(out, (row, column), value)
    return out


def _assert_adds_up(steps: pd.DataFrame, classes: np.ndarray) -> None:
    if (classes.sum(1) != steps["wall"].to_numpy()).any() or (classes < 0).any():
        raise AssertionError("a ledger does not add up to its step; please report this trace")


def _host(view: View, steps: pd.DataFrame) -> np.ndarray:
    """host_bound by part. No step bound cuts a host_bound piece: bounds are starts or ends of ops."""
    pieces = view.timeline.pieces
    late = np.flatnonzero(pieces.cls == HOST_BOUND)
    at = view.step_of(pieces.start[late], steps)
    out = np.zeros((len(steps), len(HOST_PARTS)), np.int64)
    np.add.at(out, at[at >= 0], view.timeline.host_parts[late[at >= 0]])
    return out


def _durations(view: View, steps: pd.DataFrame) -> np.ndarray:
    """Sum of op durations clipped to each step, ns."""
    start, end = (np.sort(times) for times in (view.ops.start, view.ops.end))

    def elapsed(at: np.ndarray) -> np.ndarray:
        # Sum over ops of the part before `at`: every started op counts from its start, every ended one to its end.
        begun, done = np.searchsorted(start, at), np.searchsorted(end, at)
        return (begun * at - np.r_[0, np.cumsum(start)][begun]) - (done * at - np.r_[0, np.cumsum(end)][done])

    return elapsed(steps["end"].to_numpy()) - elapsed(steps["start"].to_numpy())


def _calibrated(view: View, steps: pd.DataFrame, classes: np.ndarray) -> np.ndarray:
    """Each decode round scaled to the unprofiled step; -1 for other steps, or without an unprofiled TPOT."""
    out = np.full(classes.shape, -1, np.int64)
    if view.unprofiled_step is None:
        return out
    rounds = steps["round"].to_numpy()
    for number in np.unique(rounds[rounds >= 0]):
        mine = np.flatnonzero(rounds == number)
        out[mine] = scale_to(classes[mine], view.unprofiled_step)
    return out


def scale_to(classes: np.ndarray, target: int) -> np.ndarray:
    """(parts, classes) ns of one round as it would be in `target` ns without a profiler.

    What the profiler did goes to zero and the other host-side classes share what the GPU classes leave of the target.
    Where the GPU classes alone exceed it, host goes to zero and they are scaled down to it; where there is no host time
    to scale they stay, and the sum is theirs.
    """
    host = np.isin(CLASSES, HOST_CLASSES)
    exact = classes.astype(float)
    exact[:, np.array(CLASSES) == "profiler"] = 0
    on_host, on_gpu = exact[:, host].sum(), exact[:, ~host].sum()
    if on_gpu >= target:
        exact[:, host] = 0
        exact[:, ~host] *= target / on_gpu
    elif on_host:
        exact[:, host] *= (target - on_gpu) / on_host
    return whole(exact, target if on_host or on_gpu >= target else int(on_gpu))


def whole(exact: np.ndarray, target: int) -> np.ndarray:
    """`exact` as integers that add up to `target`: rounded down, the remainder given to the largest fractions."""
    out = np.floor(exact).astype(np.int64)
    order = np.argsort(-(exact - out).ravel(), kind="stable")
    out.ravel()[order[: max(0, target - int(out.sum()))]] += 1
    return out
