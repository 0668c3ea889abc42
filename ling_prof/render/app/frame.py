"""What every page shares: how errors, names from a recording, figures and tables come on the page."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from inspect import signature
from types import ModuleType
from typing import Any

import pandas as pd
import streamlit as st
from streamlit.navigation.page import StreamlitPage

from ling_prof.errors import UserError
from ling_prof.units import one_line

MARKUP = re.compile(r"([!#$&()*+\-.:<>@\[\\\]^_`{|}~])")  # what Markdown may take for more than itself
# Where streamlit, escapes or not, sees a link, an emoji, an arrow or a dash: a JOINER there hides it.
WOVEN = re.compile(
    r"(?<=http)(?=://)|(?<=https)(?=://)|(?<=www)(?=\.)|(?<=[\w.+-])(?=@)"
    r"|(?<=:)(?=[\w+/-]+:)|(?<=(?<!\S)[-<>~])(?=[-=>]{1,2}(?!\S))",
    re.IGNORECASE,
)
JOINER = "\u2060"  # no width, no break
LONGEST, WIDE = 400, 40  # characters: of a cell, and of one that would push others off the page
SPARE = ["zoomIn2d", "zoomOut2d", "autoScale2d", "lasso2d", "select2d"]  # buttons of figures that ours are mistaken for
FIGURE = {"displaylogo": False, "modeBarButtonsToRemove": SPARE}


def plain(text: object) -> str:
    """Text from a recording or an error as Markdown that shows it, character for character."""
    return MARKUP.sub(r"\\\1", WOVEN.sub(JOINER, one_line(str(text))))


@contextmanager
def said() -> Iterator[None]:
    """A UserError ends in its sentence on the page."""
    try:
        yield
    except UserError as error:
        st.error(plain(error))


def careful(show: Callable[..., None]) -> Callable[..., None]:
    """`show`, inside `said`."""

    @wraps(show)
    def careful_show(*args: Any) -> None:
        with said():
            show(*args)

    return careful_show


@careful
def run(module: ModuleType, chosen: Any) -> None:
    """Shows a page, whose `show` takes what is chosen, or nothing where it has no need of a recording."""
    if not signature(module.show).parameters:
        module.show()
    elif chosen is not None:
        module.show(chosen)


def page(module: ModuleType, chosen: Any) -> StreamlitPage:
    """For the navigation: named by its TITLE."""
    name = module.__name__.split(".")[-1]
    return st.Page(partial(run, module, chosen), title=module.TITLE, url_path=name, default=name == "step")


def is_dark() -> bool:
    """Whether the browser shows the dark theme."""
    return getattr(getattr(st.context, "theme", None), "type", None) == "dark"


def draw(make: Callable[..., Any], *data: Any, key: str) -> None:
    """A figure of `ling_prof.render.figures`, in the theme of the page."""
    st.plotly_chart(make(*data, dark=is_dark()), theme=None, width="stretch", key=key, config=FIGURE)


def table(rows: pd.DataFrame, key: str) -> None:
    """Numbers with one digit, text as it is."""
    rows = rows.assign(**{name: rows[name].map(lambda text: one_line(str(text))[:LONGEST]) for name in texts(rows)})
    shapes: dict[str, Any] = {
        name: st.column_config.NumberColumn(format="%.1f") for name in rows if pd.api.types.is_float_dtype(rows[name])
    }
    for name in texts(rows)[:-1]:
        if rows[name].str.len().max() > WIDE:
            shapes[name] = st.column_config.TextColumn(width="medium")
    st.dataframe(rows, hide_index=True, width="stretch", column_config=shapes, key=key)


def texts(rows: pd.DataFrame) -> list[str]:
    """The columns that are no numbers."""
    return [name for name in rows if not pd.api.types.is_numeric_dtype(rows[name])]


def kept(widget: Callable[..., Any], label: str, key: str, first: Any, **more: Any) -> Any:
    """The value of a widget that outlives a visit to another page; streamlit forgets what is not drawn."""
    state = st.session_state
    values = state.setdefault("kept", {})
    if key not in state:
        state[key] = values.get(key, first)
    values[key] = widget(label, key=key, **more)
    return values[key]
