"""What LING_OPTIM asks for: passes to be on or off, such as "-pdl,+grouped_topk"; the others are left as they are."""

import os
from collections.abc import Mapping
from typing import Any

from ling_prof.errors import UserError
from optim.sglang.registry import named, passes

VARIABLE = "LING_OPTIM"
Selection = Mapping[str, bool]


def parse(text: str) -> dict[str, bool]:
    """'-pdl,+grouped_topk' -> {'pdl': False, 'grouped_topk': True}.

    Raises UserError, with the list of valid ones, for an unknown pass, a missing sign and a pass named twice.
    """
    found: dict[str, bool] = {}
    for word in filter(None, (part.strip() for part in text.split(","))):
        sign, name = word[0], word[1:]
        if sign not in "+-":
            raise UserError(f"{VARIABLE}: {word!r} has no sign; write +{word} or -{word}.")
        if name not in passes():
            raise UserError(f"{VARIABLE}: no pass {name!r:.80}; there are {', '.join(passes())}.")
        if name in found:
            raise UserError(f"{VARIABLE} names {name} twice; name each pass once.")
        found[name] = sign == "+"
    return found


def asked() -> dict[str, bool]:
    """The selection in the environment."""
    return parse(os.environ.get(VARIABLE, ""))


def text(selection: Selection) -> str:
    """The inverse of `parse`."""
    return ",".join(f"{'+' if on else '-'}{name}" for name, on in selection.items())


def environment(selection: Selection) -> dict[str, str]:
    """The variables by which SGLang itself switches these passes."""
    return _values(selection, "environment")


def arguments(selection: Selection) -> dict[str, Any]:
    """The server arguments by which SGLang itself switches these passes."""
    return _values(selection, "arguments")


def _values(selection: Selection, kind: str) -> dict[str, Any]:
    chosen = named(list(selection))
    pairs = {name: getattr(module, kind, {}) for name, module in chosen.items()}
    return {key: values[selection[name]] for name, pair in pairs.items() for key, values in pair.items()}
