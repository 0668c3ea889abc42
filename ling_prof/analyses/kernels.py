"""Which kernels take the busy time, by role and name?

One row per (role, name) of the chosen steps, costliest first. `exclusive_ns` adds up to the busy time; durations may
not, since kernels of one stream can overlap.
"""

import numpy as np
import pandas as pd

from ling_prof.roles import ROLES
from ling_prof.timeline import BUSY
from ling_prof.view import View

COLUMNS = {
    "role": "what it is for",
    "name": "kernel or copy",
    "calls": "starts in the chosen steps",
    "exclusive_ns": "busy time given to it alone",
    "duration_ns": "sum of the durations of those calls",
    "median_ns": "median duration",
    "share": "of the busy time, 0 to 1",
}


def rows(view: View) -> pd.DataFrame:
    pieces, _ = view.pieces_in(view.chosen)
    ops, names = view.ops, view.ops.names
    busy = pieces.cls == BUSY
    exclusive = np.zeros(len(ops), np.int64)
    np.add.at(exclusive, pieces.op[busy], pieces.length[busy])
    starts = view.step_of(ops.start) >= 0
    inside = np.flatnonzero(starts | (exclusive > 0))
    duration = np.where(starts, ops.end - ops.start, np.nan)
    columns = {"role": ops.role, "name": names.codes, "exclusive_ns": exclusive, "duration": duration}
    frame = pd.DataFrame({key: column[inside] for key, column in columns.items()})
    out = (
        frame.groupby(["role", "name"])
        .agg(
            calls=("duration", "count"),
            exclusive_ns=("exclusive_ns", "sum"),
            duration_ns=("duration", "sum"),
            median_ns=("duration", "median"),
        )
        .fillna(0)
        .astype(np.int64)
        .reset_index()
    )
    out["role"] = np.array(ROLES, object)[out["role"].to_numpy()]
    out["name"] = np.asarray(names.categories, object)[out["name"].to_numpy()]
    out["share"] = out["exclusive_ns"] / max(1, int(out["exclusive_ns"].sum()))
    return out.sort_values("exclusive_ns", ascending=False, ignore_index=True)[list(COLUMNS)]
