"""A page as Chromium shows it: what is on it, and what it did."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

import pytest

ARGS = ("--no-sandbox", "--disable-dev-shm-usage", "--use-gl=angle", "--use-angle=swiftshader")


@contextmanager
def opened(url: str, **context: object) -> Iterator[tuple]:
    """(page, deeds): `url` in a new page; deeds: requests, errors and dialogs as they happen.

    Skips, loudly, where there is no Chromium or no playwright.
    """
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if not program or not find_spec("playwright"):
        pytest.skip("LOUD: no chromium or no playwright here: pages are NOT looked at in a browser")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=program, args=[*ARGS, "--enable-unsafe-swiftshader"])
        page = browser.new_page(viewport={"width": 1200, "height": 900}, **context)
        deeds: dict[str, list[str]] = {"requests": [], "errors": [], "dialogs": []}
        page.on("request", lambda request: deeds["requests"].append(request.url))
        page.on("pageerror", lambda error: deeds["errors"].append(str(error)))
        page.on("console", lambda said: deeds["errors"].append(said.text) if said.type == "error" else None)
        page.on("dialog", lambda dialog: (deeds["dialogs"].append(dialog.message), dialog.dismiss()))
        page.goto(url)
        yield page, deeds
        browser.close()
