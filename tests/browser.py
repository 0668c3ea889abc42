"""The app, and a headless Chromium to look at it: for the screenshots and for tests/test_browser.py."""

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.error import URLError
from urllib.request import urlopen

from playwright.sync_api import Browser, Page, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync"]
PATIENCE = 180  # s; a busy machine takes its time


def chromium() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
        yield opened
        opened.close()


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


QUIET = """busy => {
    const app = document.querySelector("[data-testid=stApp]");
    if (app?.dataset.testScriptState !== "notRunning" || document.querySelector(busy)) window.quietSince = null;
    else window.quietSince ??= performance.now();
    return window.quietSince !== null && performance.now() - window.quietSince > 500;
}"""
BUSY = "[data-testid=stStatusWidget], [data-testid=stSpinner], [data-testid=stSkeleton], [data-stale=true]"


def settled(page: Page) -> None:
    """Waits until the app has had nothing to do for half a second: what was clicked has begun, and ended."""
    page.evaluate("window.quietSince = null")
    page.wait_for_function(QUIET, arg=BUSY)
