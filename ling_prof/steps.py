"""Cuts a device's time into prefill, decode, draft, verify and extend steps.

A step starts with its first GPU op and ends where the next step starts. marks.py finds where they show themselves.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from ling_prof import calls
from ling_prof import intervals as iv
from ling_prof.errors import Missing
from ling_prof.marks import DECODE, PREFILL, Mark, find_marks
from ling_prof.ops import Ops

FOCUS = {PREFILL: (PREFILL,), DECODE: (DECODE, "draft", "verify", "extend", "step")}
WARM_UP, PAUSE = 1.5, 10  # times the median step
LAST = "last: nothing after it shows where it ends"
LOST = "under-recorded: a launch in it left no GPU activity"
WHOLE = "none found: the whole recording counts as one step"
NO_STEPS = Missing(
    "where a decode step begins",
    "no step annotation, no repeating CUDA graph, and no period in the kernel names",
    "mark steps with torch.profiler.record_function('decode_step_N') or NVTX, or name a range with --steps REGEX",
)


@dataclass(frozen=True)
class Steps:
    """`table`: one row a step in time order, with phase, name, device, start and end (ns), round, note and kernels.

    `round` numbers the token rounds from 0: a decode step, or draft + verify + extend together; prefills count down
    from -1. `note` is empty for a step that counts in means, else why it does not. `kernels` were launched inside the
    step's own range; `extra_kernels` run before the next step starts.
    """

    table: pd.DataFrame
    source: str
    empty: int = 0  # marked steps that launched no GPU work

    def focus(self, which: str) -> pd.DataFrame:
        """The steps of a focus ('prefill' or 'decode') that count in means; an open last one only when it is alone."""
        chosen = self.table[self.table["phase"].isin(FOCUS[which])]
        whole = chosen[chosen["note"] == ""]
        return chosen if (chosen["note"] == LAST).all() else whole


def find_steps(ops: Ops, pattern: str | None = None, skip: int = 0) -> Steps:
    """The steps of a device, by `pattern` (a regular expression over range names) when given, else by the best source.

    `skip` leaves out that many decode rounds at the start. Raises UserError when the pattern is malformed or matches
    nothing. Where no source shows a step the source is WHOLE.
    """
    source, marks = find_marks(ops, pattern)
    if not source:
        begin, end = int(ops.start.min()), int(ops.end.max())
        source, marks = WHOLE, [Mark("step", "the whole recording", begin, end, begin)]
    seen = sorted((m for m in marks if m.start is not None), key=lambda m: m.start or 0)
    return Steps(_table(ops, seen, skip), source, empty=len(marks) - len(seen))


def _table(ops: Ops, marks: list[Mark], skip: int) -> pd.DataFrame:
    start, last_end = (np.array([getattr(m, key) for m in marks], np.int64) for key in ("start", "last_end"))
    end = np.r_[start[1:], max(int(last_end[-1]), int(start[-1]))]
    number = _rounds([m.phase for m in marks])
    # Draft work that belongs to a prefill is prefill.
    phase = np.where(number < 0, PREFILL, [m.phase for m in marks])
    table = pd.DataFrame({"phase": phase, "name": [m.name for m in marks], "device": ops.device, "start": start})
    table = table.assign(end=end, round=number)
    lost = np.searchsorted([m.begun for m in marks], lost_launches(ops), "right") - 1
    table["note"] = _notes(table, last_end, skip, lost[lost >= 0])
    paused = (table["note"] == "before a pause").to_numpy()
    table["end"] = np.where(paused, np.minimum(last_end, end), end)
    return table.assign(**_kernels(ops, marks, table))


def _kernels(ops: Ops, marks: list[Mark], table: pd.DataFrame) -> dict[str, np.ndarray]:
    kernels = ops.start[ops.is_kernel]
    inside = np.searchsorted(kernels, table["end"]) - np.searchsorted(kernels, table["start"])
    own = np.array([n if m.kernels is None else m.kernels for m, n in zip(marks, inside, strict=True)])
    return {"kernels": own, "extra_kernels": np.maximum(inside - own, 0)}


def _rounds(phases: list[str]) -> np.ndarray:
    """The token round of each step; negative for a prefill and for draft work between it and the next round."""
    out, number, prefill, inside, last = [], -1, 0, False, ""
    for phase in phases:
        if phase == PREFILL:
            prefill, inside = prefill - 1, False
        elif _opens_round(phase, last if inside else ""):
            number, inside = number + 1, True
        out.append(number if inside else min(prefill, -1))
        last = phase
    return np.array(out)


def _opens_round(phase: str, last: str) -> bool:
    """A decode step is a round; a draft opens one, and so does a verify that no draft came before; an extend never."""
    return phase in (DECODE, "step") or (phase in ("draft", "verify") and last != "draft")


def _notes(table: pd.DataFrame, last_end: np.ndarray, skip: int, lost: np.ndarray) -> np.ndarray:
    """Why each step does not count in means; one reason leaves out the whole round."""
    wall, rounds = (table["end"] - table["start"]).to_numpy(), table["round"].to_numpy()
    notes = np.full(len(table), "", object)
    decode = wall[rounds >= 0]
    usual = np.median(decode[:-1]) if len(decode) > 3 else np.inf
    notes[table["end"].to_numpy() - last_end > PAUSE * usual] = "before a pause"
    notes[_warm_up(wall, rounds)] = "warm-up"
    notes[-1] = LAST
    notes[lost] = LOST
    notes[(rounds >= 0) & (rounds < skip)] = "skipped"
    noted = pd.Series(notes[notes != ""], rounds[notes != ""])
    reason = noted[~noted.index.duplicated()]
    return np.where(notes == "", [reason.get(r, "") for r in rounds], notes)


def lost_launches(ops: Ops) -> np.ndarray:
    """When this device's processes launched kernels or graphs of which the recording holds no op, ns on the host.

    Where some ops have no recorded launch, theirs may be the kernels that seem lost: then graphs alone are looked at.
    """
    if not ops.trace.has("api"):
        return np.empty(0, np.int64)
    api, linked = ops.trace.api, ops.trace.gpu["api_row"].to_numpy()
    pattern = calls.LAUNCH if (linked >= 0).all() else calls.GRAPH_LAUNCH
    launched = np.flatnonzero(calls.matching(api["name"].array, pattern) & ops.own_calls)
    at = api["start"].to_numpy()[launched[~np.isin(launched, linked)]]
    return at[~iv.contains(_captures(api), at)]


def _captures(api: pd.DataFrame) -> iv.Union:
    """When a stream was being captured: what is launched then runs only in the graph."""
    begin, end = (api[api["name"] == f"cudaStream{what}Capture"] for what in ("Begin", "End"))
    pairs = min(len(begin), len(end))
    return iv.union(begin["start"].to_numpy()[:pairs], end["end"].to_numpy()[:pairs])


def _warm_up(wall: np.ndarray, rounds: np.ndarray) -> np.ndarray:
    """Whether each step is of the leading rounds that took over 1.5 times the median round."""
    if rounds.max(initial=-1) < 3:
        return np.zeros(len(wall), bool)
    length = np.bincount(rounds[rounds >= 0], wall[rounds >= 0])
    slow = length > WARM_UP * np.median(length[:-1])
    return (rounds >= 0) & (rounds < (0 if slow.all() else int(np.argmin(slow))))
