"""Random weights for load_format="dummy" under which text varies: SGLang's own are nearly nothing, norms included.

The same values whatever dtype they are kept in, so that a pass that narrows them only rounds them.
"""

import math
import os
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ling_prof.errors import UserError
from optim.sglang.patch import exchanged

VARIABLE = "LING_OPTIM_WEIGHTS"
TARGET = "sglang.srt.model_loader.loader:initialize_dummy_weights"
LAYER = re.compile(r"\.layers\.(\d+)\.")
INIT = (  # the first that matches; others are left as SGLang draws them
    ("one", re.compile(r"norm\d*\.weight$")),
    ("a_log", re.compile(r"A_log$")),
    ("dt_bias", re.compile(r"dt_bias$")),
    ("bias", re.compile(r"expert_bias$")),
    ("embed", re.compile(r"word_embeddings\.weight$")),
    ("branch", re.compile(r"(o_proj|dense|down_proj)\.weight$|w2_weight$")),
    ("matrix", re.compile(r"weight$")),
)


def seed() -> int | None:
    """The seed in the environment; None where there is none. Raises UserError for what is no whole number."""
    if not (text := os.environ.get(VARIABLE, "")):
        return None
    if not re.fullmatch("[0-9]{1,18}", text):
        raise UserError(f"{VARIABLE} is {text!r:.40}; it takes a seed, a whole number of at most 18 digits.")
    return int(text)


@contextmanager
def drawn() -> Iterator[None]:
    """Dummy weights are drawn by `fill` inside, if there is a seed. Raises NotThere."""
    if (number := seed()) is None:
        yield
        return

    def both(usual: Any) -> Any:
        def draw(model: Any, *args: Any, **more: Any) -> None:
            usual(model, *args, **more)
            fill(model, number)

        return draw

    with exchanged(TARGET, both):
        yield


def fill(model: Any, number: int) -> None:
    """Draws each floating-point weight of a model from a generator of its own."""
    import torch

    named = {name: one for name, one in model.state_dict().items() if one.is_floating_point() and one.itemsize > 1}
    layers = 1 + max((int(found[1]) for name in named if (found := LAYER.search(name))), default=0)
    for name, one in named.items():
        kind = next((kind for kind, pattern in INIT if pattern.search(name)), None)
        if kind is not None:
            dice = torch.Generator(one.device).manual_seed(zlib.crc32(f"{number} {name}".encode()))
            one.copy_(_values(kind, one, layers, dice))


def _values(kind: str, one: Any, layers: int, dice: Any) -> Any:
    """fp32 of the same shape, in the distributions of optim.engine.weights."""
    import torch

    if kind == "one":
        return torch.ones_like(one)
    values = torch.empty(one.shape, device=one.device)
    if kind in ("a_log", "dt_bias"):
        low, high = {"a_log": (-0.5, 0.5), "dt_bias": (-4.0, 0.0)}[kind]
        return values.uniform_(low, high, generator=dice)
    std = {"embed": 1.0, "bias": 0.02}.get(kind, one.shape[-1] ** -0.5)
    return values.normal_(0, std / math.sqrt(2 * layers) if kind == "branch" else std, generator=dice)
