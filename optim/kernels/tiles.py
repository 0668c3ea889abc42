"""Tile sizes of the kernels by GPU, kernel and shape: searched by `ling-prof tune`, kept in tiles.json.

A GPU or shape that the table does not know takes the first choice of the kernel.
"""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch

TABLE = Path(__file__).with_name("tiles.json")
Tile = dict[str, int]

trial: dict[str, Tile] = {}  # what a search tries now, in place of the table
asked: dict[str, Sequence[Tile]] = {}  # every key so far and its choices


def tile(kernel: str, shape: tuple[int, ...], choices: Sequence[Tile], dtype: torch.dtype, *more: torch.dtype) -> Tile:
    """The constants to launch `kernel` with for weights of this shape; one of `choices`, or what the table says.

    dtype: of what it reads most, `more` of what else it reads. A key leaves out bf16.
    """
    wide = [str(one).removeprefix("torch.") for one in (dtype, *more) if one != torch.bfloat16]
    key = " ".join([kernel, "x".join(map(str, shape)), *wide])
    asked[key] = choices
    return trial.get(key) or table().get(gpu(), {}).get(key) or choices[0]


@cache
def gpu() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "none"


@cache
def table() -> dict[str, dict[str, Tile]]:
    """GPU -> key -> tile."""
    return json.loads(TABLE.read_text())
