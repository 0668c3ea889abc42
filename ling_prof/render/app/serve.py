"""Starts the dashboard in this process. Imports streamlit only when asked to."""

import socket
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ling_prof.bundled import app
from ling_prof.errors import UserError

HOST = "localhost"  # the app reads any file that its user may: nobody else's browser should reach it


def serve(trace: Path | None, port: int | None, headless: bool) -> None:
    """Until it is interrupted. Raises UserError, before the server starts, for a file that is no trace, for a port that
    is taken, and without streamlit."""
    if lacks := [name for name in ("streamlit", "plotly") if find_spec(name) is None]:
        raise UserError(f"the app needs {' and '.join(lacks)}; pip install 'ling-prof[app]'.")
    _check_free(port)
    flags: dict[str, Any] = {"server_address": HOST, "server_headless": headless, "server_fileWatcherType": "none"}
    flags |= {
        "server_port": port,
        "browser_gatherUsageStats": False,
        "logger_level": "error",
        "client_toolbarMode": "viewer",
    }
    from streamlit.web import bootstrap

    script = str(app())
    bootstrap.load_config_options(flags)
    if trace is not None:
        _check_trace(trace)
    bootstrap.run(script, False, [] if trace is None else [str(trace)], flags)


def _check_free(port: int | None) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port or 0))
        except OSError as error:
            raise UserError(
                f"the app cannot listen on port {port} ({error.strerror}); choose another with --port."
            ) from None


def _check_trace(path: Path) -> None:
    """Reads it: the pages find it in the cache."""
    from ling_prof.ops import devices
    from ling_prof.render.app import store

    devices(store.trace(store.at(path)))
