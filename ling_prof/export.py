"""The tables of a trace as Parquet or CSV files: all of them, or none."""

import json
import os
import shutil
import tempfile
from pathlib import Path

import pandas as pd

from ling_prof.analyses import ANALYSES, run
from ling_prof.errors import Missing, UserError
from ling_prof.trace import SCHEMA, Trace
from ling_prof.view import Options, views


def export(trace: Trace, folder: Path, kind: str, options: Options = Options()) -> list[str]:
    """Writes every table the trace holds and every analysis that answers into `folder`, which must not exist yet.

    Returns the file names. Raises UserError when the folder exists or cannot be made; leaves nothing half-written.
    """
    frames = {name: trace.table(name) for name in SCHEMA if trace.has(name)} | _analyses(trace, options)
    try:
        if folder.exists():
            raise UserError(f"{folder} exists already; name a folder that does not.")
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    except OSError as error:
        raise UserError(f"{folder} cannot be made ({error.strerror}).") from None
    try:
        files = [_write(frame, partial / f"{name}.{kind}", kind) for name, frame in frames.items()]
        partial.chmod(0o777 & ~_umask())
        partial.rename(folder)
    except OSError as error:
        raise UserError(f"{folder} cannot be written ({error.strerror}).") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return files


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _analyses(trace: Trace, options: Options) -> dict[str, pd.DataFrame]:
    """The rows of every analysis that answers, of all devices that worked (or the chosen one)."""
    rows: dict[str, list[pd.DataFrame]] = {}
    for seen in views(trace, options) if trace.has("gpu") else ():
        for name in ANALYSES:
            try:
                frame = run(name, seen)
            except Missing:
                continue
            rows.setdefault(f"analysis_{name}", []).append(frame.assign(device=seen.ops.device))
    return {name: pd.concat(frames, ignore_index=True) for name, frames in rows.items()}


def _write(frame: pd.DataFrame, path: Path, kind: str) -> str:
    if kind == "parquet":
        frame.to_parquet(path, index=False)
    else:
        nested = {key: frame[key].map(json.dumps) for key in ("classes", "stack") if key in frame}
        frame.assign(**nested).to_csv(path, index=False)
    return path.name
