"""Choosing a file: one that comes along, an upload, or a path; what was touched last counts."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import streamlit as st

from ling_prof.render.app import store
from ling_prof.render.app.frame import kept
from ling_prof.render.app.store import Source

HERE, UPLOAD, PATH = "here", "upload", "path"
LOOPBACK = ("localhost", "127.0.0.1", "::1")


def draw(labels: Mapping[str, str], key: str, files: Mapping[str, Path]) -> None:
    """A widget for each way in `labels` (HERE, UPLOAD, PATH -> its label); `files` come along. Their states have keys
    that begin with `key`. A path of this machine is asked for only where nobody else can reach the server."""
    for way, label in labels.items():
        touched: dict[str, Any] = {"on_change": _touch, "args": (key, way)}
        if way == HERE:
            shown = {"options": list(files), "index": None, "placeholder": "None chosen"}
            kept(st.selectbox, label, f"{key} {way}", None, **shown, **touched)
        elif way == UPLOAD:
            st.file_uploader(label, key=f"{key} {way}", **touched)
        elif st.get_option("server.address") in LOOPBACK:
            kept(st.text_input, label, f"{key} {way}", "", **touched)


def start(key: str, **ways: str) -> None:
    """What is chosen before anybody has chosen: the last of `ways` that is not empty."""
    way = next((way for way in reversed(ways) if ways[way]), None)
    if way is not None and f"{key} last" not in st.session_state:
        st.session_state.update({f"{key} last": way, f"{key} {way}": ways[way]})


def _touch(key: str, way: str) -> None:
    """The other widgets are emptied, but for an upload, which its own widget alone can take back."""
    st.session_state[f"{key} last"] = way
    for other, empty in ((HERE, None), (PATH, "")):
        if other != way and f"{key} {other}" in st.session_state:
            st.session_state[f"{key} {other}"] = empty


def picked(key: str, files: Mapping[str, Path]) -> Source | None:
    """What the widgets of `key` say: the way touched last, where it names a file, or else what comes along."""
    state = st.session_state
    last, name = state.get(f"{key} last"), state.get(f"{key} {HERE}", "")
    if last == UPLOAD and (upload := state.get(f"{key} {UPLOAD}")):
        return store.uploaded(upload)
    if last == PATH and (given := (state.get(f"{key} {PATH}") or "").strip()):
        return store.at(given, given)
    return store.at(files[name], name) if name in files else None
