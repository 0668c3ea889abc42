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


def demo() -> tuple[Path, str | None]:
    """The demo recording and its unprofiled step time, as --unprofiled-tpot takes it."""
    row = next(r for r in recordings() if r.get("demo"))
    step = row.get("unprofiled_step_ms")
    return folder() / row["file"], f"{step}ms" if step else None
