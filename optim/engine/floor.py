"""The bytes a decoded token cannot do without: every weight it uses read once, the state read and written.

bytes = sum over the parts below; time floor = bytes / memory bandwidth. Matrices count in the model dtype, the routers
and the head too (what an engine spends on wider ones is its own); KDA's state and the small fp32 parameters count four
bytes a number. Which experts the router takes does not matter, only how many.
"""

import math
from collections import Counter
from dataclasses import dataclass

from optim.engine.config import Config
from optim.engine.weights import Spec, layer_specs, top_specs

FP32 = 4


@dataclass(frozen=True)
class Part:
    """`formula` is what `bytes` came from, in numbers."""

    part: str
    formula: str
    bytes: int


def parts(c: Config, context: int, width: int = 2) -> list[Part]:
    """Bytes of one decode step, largest first, for `context` tokens in the cache and `width` bytes a weight."""
    state = (c.kda_layers, c.heads, c.kda_dim, c.kda_dim, FP32)
    window = (c.kda_layers, 3 * c.kda_width, c.conv - 1, width)
    made = [
        *_weights(c, width),
        _sum("one row of the embedding", [(c.hidden, width)]),
        _sum("KDA state, read and written", [state, state]),
        _sum("KDA convolution windows, read and written", [window, window]),
        _sum("MLA latents", [(c.mla_layers, context, c.kv_lora + c.rope, width)]),
    ]
    return sorted((part for part in made if part.bytes), key=lambda part: -part.bytes)


def total(found: list[Part]) -> int:
    return sum(part.bytes for part in found)


def _weights(c: Config, width: int) -> list[Part]:
    """Every parameter of the table in weights.py, in groups; of the experts the top_k that a token uses."""
    groups: dict[str, list[Spec]] = {}
    for layer in range(c.layers):
        for field, spec in layer_specs(c, layer).items():
            groups.setdefault(_group(c, layer, field), []).append(spec)
    top = top_specs(c)
    groups.setdefault("norms", []).append(top["norm"])
    groups["head"] = [top["head"]]
    return [_sum(name, [_read(spec, c, width) for spec in specs]) for name, specs in groups.items()]


def _read(spec: Spec, c: Config, width: int) -> tuple[int, ...]:
    """What a token reads of a parameter: its sizes, then the bytes of a number."""
    wide = spec.fp32 and not spec.narrow
    rows = c.top_k if spec.count else spec.shape[0]
    return (rows, *spec.shape[1:], FP32 if wide else width)


def _sum(name: str, reads: list[tuple[int, ...]]) -> Part:
    """Equal reads, of several layers mostly, become one term."""
    terms = [f"{f'{n} x ' * (n > 1)}{' x '.join(map(str, read))} B" for read, n in Counter(reads).items()]
    return Part(name, " + ".join(terms), sum(map(math.prod, reads)))


def _group(c: Config, layer: int, field: str) -> str:
    named = {"router": "routers", "bias": "routers", "w13": "experts", "w2": "experts"}
    if field.startswith("shared_"):
        return "shared experts"
    if field in ("attn_norm", "mlp_norm"):
        return "norms"
    if field in ("gate_up", "down"):
        return "dense MLP"
    return named.get(field) or ("MLA weights" if c.is_mla(layer) else "KDA weights")
