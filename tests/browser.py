"""A page as Chromium shows it: what is on it, and what it did. And the app, served to be looked at."""

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest

ARGS = ["--no-sandbox", "--disable-dev-shm-usage", "--use-gl=angle", "--use-angle=swiftshader"]
ARGS += ["--enable-unsafe-swiftshader", "--disable-quic", "--no-first-run", "--disable-background-networking"]
ARGS += ["--disable-component-update", "--disable-sync"]
PATIENCE = 180  # s; a busy machine takes its time
BUSY = "[data-testid=stStatusWidget], [data-testid=stSpinner], [data-testid=stSkeleton], [data-stale=true]"
QUIET = """busy => {
    const app = document.querySelector("[data-testid=stApp]");
    if (app?.dataset.testScriptState !== "notRunning" || document.querySelector(busy)) window.quietSince = null;
    else window.quietSince ??= performance.now();
    return window.quietSince !== null && performance.now() - window.quietSince > 500;
}"""


def chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser")


@contextmanager
def opened(url: str, **context: Any) -> Iterator[tuple]:
    """(page, deeds): `url` in a new page; deeds: requests, errors and dialogs as they happen.

    Skips, loudly, where there is no Chromium or no playwright.
    """
    if not chromium() or not find_spec("playwright"):
        pytest.skip("LOUD: no chromium or no playwright here: pages are NOT looked at in a browser")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium(), args=ARGS)
        page = browser.new_page(**{"viewport": {"width": 1200, "height": 900}, **context})
        deeds: dict[str, list[str]] = {"requests": [], "errors": [], "dialogs": []}
        page.on("request", lambda request: deeds["requests"].append(request.url))
        page.on("websocket", lambda socket: deeds["requests"].append(socket.url))
        page.on("pageerror", lambda error: deeds["errors"].append(str(error)))
        page.on("console", lambda said: deeds["errors"].append(said.text) if said.type == "error" else None)
        page.on("dialog", lambda dialog: (deeds["dialogs"].append(dialog.message), dialog.dismiss()))
        page.goto(url)
        yield page, deeds
        browser.close()


@contextmanager
def app(*arguments: str) -> Iterator[str]:
    """Runs `ling-prof app` on a free port; its address, once it answers."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = str(probe.getsockname()[1])
    command = [sys.executable, "-m", "ling_prof.cli", "app", *arguments, "--headless", "--port", port]
    served = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        _await(f"http://localhost:{port}/_stcore/health", served)
        yield f"http://localhost:{port}"
    finally:
        served.terminate()
        served.communicate()


def _await(address: str, served: subprocess.Popen) -> None:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and served.poll() is None:
        try:
            urlopen(address, timeout=5).close()
            return
        except (URLError, TimeoutError):
            time.sleep(0.2)
    raise RuntimeError("the app does not answer" if served.poll() is None else f"the app ended: {served.stdout.read()}")


def settled(page: Any) -> None:
    """Waits until the app has had nothing to do for half a second: what was clicked has begun, and ended."""
    page.evaluate("window.quietSince = null")
    page.wait_for_function(QUIET, arg=BUSY, timeout=1000 * PATIENCE)
