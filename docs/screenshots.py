"""Makes docs/images/: pages of the app and of the HTML report, light and dark, as a headless Chromium shows them.

    python docs/screenshots.py [NAME...]

Needs ling-prof[app], playwright and a Chromium. A picture is 1280 px wide and has at most 200 kB.
"""

import io
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from PIL import Image
from playwright.sync_api import Page

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from browser import PATIENCE, app, chromium, opened, settled  # noqa: E402

IMAGES = ROOT / "docs/images"
WIDTH, MOST = 1280, 200_000
DEMO, UNPROFILED = "h200_qwen3_graph_stacks.pt.trace.json.gz", "2.223ms"
BASELINE, LAST = "ladder/00-baseline.json.gz", "ladder/16-seam_fuse.json.gz"


class Picture(NamedTuple):
    """A page of the app, after `prepare`, from the heading `top` on."""

    link: str
    height: int
    recording: str = DEMO
    prepare: Callable[[Page], None] = lambda page: None
    top: str = ""


def choose(page: Page, label: str, value: str) -> None:
    page.get_by_test_id("stSelectbox").filter(has_text=label).locator("input").fill(value)
    page.keyboard.press("Enter")
    settled(page)


def switch_on(page: Page) -> None:
    for name in ("host_run_ahead", "moe_align_pairs"):
        page.get_by_role("switch", name=name, exact=True).press("Space")
        settled(page)


PICTURES = {
    "step": Picture("Step", 1000),
    "timeline": Picture("Step", 800, top="One step on lanes"),
    "tables": Picture("Tables", 900),
    "passes": Picture("Passes", 1000, BASELINE, switch_on),
    "ablation": Picture("Ablation", 1050),
    "compare": Picture("Compare", 1180, BASELINE, lambda page: choose(page, "Compare with", LAST)),
}


def take(page: Page, picture: Picture) -> bytes:
    page.set_viewport_size({"width": WIDTH, "height": picture.height})
    choose(page, "Recording", picture.recording)
    page.get_by_test_id("stSidebarNav").get_by_role("link", name=picture.link, exact=True).click()
    settled(page)
    picture.prepare(page)
    if picture.top:
        page.get_by_role("heading", name=picture.top).evaluate("heading => heading.scrollIntoView()")
    page.evaluate("document.activeElement.blur()")
    page.mouse.move(0, 0)
    page.wait_for_timeout(1000)  # figures move into place
    return page.screenshot()


def report(page: Page) -> bytes:
    """The top of the HTML report."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.html"
        command = [sys.executable, "-m", "ling_prof.cli", "report", f"traces/{DEMO}", "--html", str(path)]
        subprocess.run([*command, "--unprofiled-tpot", UNPROFILED], cwd=ROOT, check=True, capture_output=True)
        page.set_viewport_size({"width": WIDTH, "height": 1100})
        page.goto(path.as_uri())
        page.wait_for_timeout(2000)
        return page.screenshot()


def save(name: str, shot: bytes) -> None:
    """In 256 colours, each as near as can be: those of the ledger's classes must stay theirs."""
    packed = io.BytesIO()
    picture = Image.open(io.BytesIO(shot)).convert("RGB")
    picture.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(packed, "PNG", optimize=True)
    if packed.tell() > MOST:
        raise SystemExit(f"{name}.png would have {packed.tell()} bytes, over {MOST}: make it less high")
    (IMAGES / f"{name}.png").write_bytes(packed.getvalue())
    print(f"{name}.png: {packed.tell() / 1000:.0f} kB")


def main() -> None:
    if not chromium():
        raise SystemExit("no Chromium is on PATH: install one, such as Debian's chromium package")
    IMAGES.mkdir(exist_ok=True)
    with app() as address:
        for theme, ending in (("light", ""), ("dark", "-dark")):
            for name in sys.argv[1:] or [*PICTURES, "report"]:
                with opened(address, color_scheme=theme) as (page, _):
                    page.set_default_timeout(1000 * PATIENCE)
                    settled(page)
                    save(name + ending, take(page, PICTURES[name]) if name in PICTURES else report(page))


if __name__ == "__main__":
    main()
