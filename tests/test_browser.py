"""The app as a person meets it: in a headless Chromium, on the bundled recording.

LING_PROF_SCREENSHOTS names a folder where the pictures of the visit are kept.
"""

import json
import os
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from browser import PATIENCE, app, chromium, opened, settled
from conftest import BUNDLED
from test_cli import DEMO, MANIFEST, cli, refused

from ling_prof.units import show_time

ABSENT = "LOUD: {} is absent: the app is NOT tested in a browser"
for package in ("streamlit", "plotly", "playwright"):
    pytest.importorskip(package, reason=ABSENT.format(package))

from playwright.sync_api import Page, expect  # noqa: E402

PASSES = ("host_run_ahead", "splitk_gemv")
PAGES = ("step", "tables", "passes", "ablation", "compare", "download")
HERE = ("localhost", "127.0.0.1")
WAIT = 1000 * PATIENCE


@pytest.fixture
def pictures(tmp_path) -> Path:
    folder = Path(os.environ.get("LING_PROF_SCREENSHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def visit():
    """The app in a fresh browser, and what the page does."""
    if not chromium():
        pytest.skip(ABSENT.format("Chromium"))
    expect.set_options(timeout=WAIT)
    with app() as address, opened(address, viewport={"width": 1280, "height": 900}) as (page, deeds):
        page.set_default_timeout(WAIT)
        yield page, deeds


def go_to(page: Page, name: str) -> None:
    page.get_by_test_id("stSidebarNav").get_by_role("link", name=name.capitalize(), exact=True).click()
    settled(page)


def broken(folder: Path) -> Path:
    path = folder / "cut off.json"
    path.write_text('{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "du')
    return path


def every_page_is_drawn(page: Page, pictures: Path) -> None:
    for name in PAGES:
        go_to(page, name)
        page.screenshot(path=pictures / f"{name}.png")
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        expect(page.get_by_test_id("stException")).to_have_count(0)


def switched_passes_predict_what_the_command_does(page: Page, pictures: Path) -> None:
    step = next(row["unprofiled_step_ms"] for row in MANIFEST if row["demo"])
    done = cli("whatif", DEMO, "--do", ",".join(PASSES), "--unprofiled-tpot", f"{step}ms", "--json")
    wanted = json.loads(done.stdout)
    go_to(page, "passes")
    metric = page.get_by_test_id("stMetric").filter(has_text="Predicted step")
    expect(metric).to_contain_text(show_time(wanted["step_ns"]))
    for name in PASSES:
        page.get_by_role("switch", name=name, exact=True).press("Space")
        settled(page)
    expect(metric).to_contain_text(show_time(wanted["predicted_ns"]))
    low, high = (show_time(wanted["step_ns"] - wanted[key]) for key in ("high_ns", "low_ns"))
    expect(page.get_by_text(f"{wanted['predicted_ns']:,} ns; {low} to {high}")).to_be_visible()
    page.screenshot(path=pictures / "passes_on.png")


def a_broken_upload_ends_in_the_sentence_of_the_command(page: Page, pictures: Path, path: Path) -> None:
    sentence = refused("report", str(path)).removeprefix("ling-prof: ").strip().replace(str(path), path.name)
    upload = page.get_by_test_id("stFileUploader").filter(has_text="Upload a trace")
    upload.locator("input[type=file]").set_input_files(path)
    expect(page.get_by_test_id("stAlert").get_by_text(sentence, exact=True)).to_be_visible()
    page.screenshot(path=pictures / "broken.png")


def the_ablation_is_the_committed_one(page: Page) -> None:
    go_to(page, "ablation")
    found = json.loads((BUNDLED.parent / "docs/results/h200-tiny-ablation.json").read_text())
    for label, key in (("Baseline TPOT", "baseline"), ("All on", "all_on")):
        metric = page.get_by_test_id("stMetric").filter(has_text=label)
        expect(metric).to_contain_text(show_time(1e6 * found[key]["tpot_ms"]))


def test_a_visit(visit, pictures, tmp_path):
    page, deeds = visit
    settled(page)
    every_page_is_drawn(page, pictures)
    switched_passes_predict_what_the_command_does(page, pictures)
    the_ablation_is_the_committed_one(page)
    a_broken_upload_ends_in_the_sentence_of_the_command(page, pictures, broken(tmp_path))
    asked = [address for address in deeds["requests"] if not address.startswith(("data:", "blob:"))]
    assert {urlsplit(address).hostname for address in asked} <= {*HERE}
    assert len(asked) > len(PAGES)
    assert deeds["errors"] == []
