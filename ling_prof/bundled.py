"""The recordings that come with ling-prof: beside the package in a checkout, inside it in a wheel."""

import json
from pathlib import Path
from typing import Any

from ling_prof.errors import UserError


def folder() -> Path:
    """Where traces/ lies. Raises UserError when this installation has none."""
    here = Path(__file__).parent
    for place in (here / "traces", here.parent / "traces"):
        if (place / "manifest.json").exists():
            return place
    raise UserError("this installation has no bundled recordings; install the wheel or run from a checkout.")


def recordings() -> list[dict[str, Any]]:
    """The rows of traces/manifest.json."""
    return json.loads((folder() / "manifest.json").read_text())


def every() -> dict[str, dict[str, Any]]:
    """Those, the rungs of the ladder and SGLang's, by their path from the folder; none where this installation has
    none."""
    try:
        rows = {row["file"]: row for row in recordings()}
    except UserError:
        return {}
    for name in ("ladder", "sglang"):
        more = json.loads((folder() / name / "manifest.json").read_text())
        rows |= {f"{name}/{row['file']}": row for row in more}
    return rows


def results() -> list[Path]:
    """The committed measurements, docs/results/*.json; none where this installation has none."""
    here = Path(__file__).parent
    return sorted(path for place in (here / "results", here.parent / "docs/results") for path in place.glob("*.json"))


def app() -> Path:
    """The script that streamlit runs; in a wheel alone in its folder, which streamlit puts on the path.

    Raises UserError when this installation has none.
    """
    here = Path(__file__).parent
    for place in (here / "dashboard/app.py", here.parent / "app.py"):
        if place.exists():
            return place
    raise UserError("this installation has no app.py; install the wheel or run from a checkout.")


def demo() -> tuple[Path, str | None]:
    """The demo recording and its unprofiled step time, as --unprofiled-tpot takes it."""
    row = next(r for r in recordings() if r.get("demo"))
    step = row.get("unprofiled_step_ms")
    return folder() / row["file"], f"{step}ms" if step else None
