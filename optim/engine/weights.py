"""The parameters of a model: one table of names and shapes. Random weights, checkpoints and byte counts come from it.

Names are those of a BailingMoeV3 checkpoint. A field of ours may hold several of its tensors: `parts` are stacked along
their rows (gate over up, q over k over v), and `count` experts along a new first axis.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Literal

import torch

from optim.engine.config import Config

Init = Literal["matrix", "branch", "embed", "one", "bias", "a_log", "dt_bias"]
Source = Callable[[str, "Spec"], torch.Tensor]  # (checkpoint name, spec) -> one part, shaped spec.part_shape


@dataclass(frozen=True)
class Spec:
    """One field: the checkpoint tensors it holds, its shape and how random weights begin.

    `fp32` parameters stay so in every model dtype; `narrow` ones could do with the model dtype (routers, convolutions).
    `init` "branch" is a matrix whose output joins the residual.
    """

    parts: tuple[str, ...]
    shape: tuple[int, ...]
    init: Init = "matrix"
    fp32: bool = False
    narrow: bool = False
    count: int = 0  # experts; 0: no expert axis
    stored: tuple[int, ...] | None = None  # the shape of one part in a checkpoint, where it differs

    @property
    def part_shape(self) -> tuple[int, ...]:
        rows, *rest = self.shape[1:] if self.count else self.shape
        return (rows // len(self.parts), *rest)

    def names(self, prefix: str) -> list[str]:
        """The checkpoint names, in the order in which they are stacked."""
        numbers = range(self.count) if self.count else (0,)
        return [prefix + part.format(e) for e in numbers for part in self.parts]


def _one(name: str, *shape: int, **more) -> Spec:
    return Spec((name,), shape, **more)


def kda_specs(c: Config) -> dict[str, Spec]:
    d, h = c.kda_width, c.hidden
    conv = tuple(f"attention.{x}_conv1d.weight" for x in "qkv")
    return {
        "qkv": Spec(tuple(f"attention.{x}_proj.weight" for x in "qkv"), (3 * d, h)),
        "conv": Spec(conv, (3 * d, c.conv), fp32=True, narrow=True, stored=(d, 1, c.conv)),
        "f": _one("attention.f_proj.weight", d, h),
        "g": _one("attention.g_proj.weight", d, h),
        "b": _one("attention.b_proj.weight", c.heads, h),
        "a_log": _one("attention.A_log", c.heads, init="a_log", fp32=True),
        "dt_bias": _one("attention.dt_bias", d, init="dt_bias", fp32=True),
        "o_norm": _one("attention.o_norm.weight", c.kda_dim, init="one"),
        "o": _one("attention.o_proj.weight", h, d, init="branch"),
    }


def mla_specs(c: Config) -> dict[str, Spec]:
    h, q = c.hidden, c.heads * (c.nope + c.rope)
    if c.q_lora is None:
        queries = {"q": _one("attention.q_proj.weight", q, h)}
    else:
        queries = {
            "q_a": _one("attention.q_a_proj.weight", c.q_lora, h),
            "q_norm": _one("attention.q_a_layernorm.weight", c.q_lora, init="one"),
            "q_b": _one("attention.q_b_proj.weight", q, c.q_lora),
        }
    gate = {"gate": _one("attention.g_proj.weight", c.heads, h)} if c.head_gate else {}
    return {
        **queries,
        "kv_a": _one("attention.kv_a_proj_with_mqa.weight", c.kv_lora + c.rope, h),
        "kv_norm": _one("attention.kv_a_layernorm.weight", c.kv_lora, init="one"),
        "kv_b": _one("attention.kv_b_proj.weight", c.heads * (c.nope + c.v_dim), c.kv_lora),
        **gate,
        "o": _one("attention.dense.weight", h, c.heads * c.v_dim, init="branch"),
    }


def mlp_specs(c: Config, width: int, prefix: str = "mlp.") -> dict[str, Spec]:
    gate_up = (f"{prefix}gate_proj.weight", f"{prefix}up_proj.weight")
    return {
        "gate_up": Spec(gate_up, (2 * width, c.hidden)),
        "down": _one(f"{prefix}down_proj.weight", c.hidden, width, init="branch"),
    }


def moe_specs(c: Config) -> dict[str, Spec]:
    width, n = c.moe_intermediate, c.experts
    gate_up = ("mlp.experts.{}.gate_proj.weight", "mlp.experts.{}.up_proj.weight")
    shared = mlp_specs(c, c.shared_intermediate, "mlp.shared_experts.")
    return {
        "router": _one("mlp.gate.weight", n, c.hidden, fp32=True, narrow=True),
        "bias": _one("mlp.gate.expert_bias", n, init="bias", fp32=True),
        "w13": Spec(gate_up, (n, 2 * width, c.hidden), count=n),
        "w2": _one("mlp.experts.{}.down_proj.weight", n, c.hidden, width, init="branch", count=n),
        "shared_gate_up": shared["gate_up"],
        "shared_down": shared["down"],
    }


def layer_specs(c: Config, layer: int) -> dict[str, Spec]:
    return {
        "attn_norm": _one("input_layernorm.weight", c.hidden, init="one"),
        **(mla_specs(c) if c.is_mla(layer) else kda_specs(c)),
        "mlp_norm": _one("post_attention_layernorm.weight", c.hidden, init="one"),
        **(mlp_specs(c, c.dense_intermediate) if c.is_dense(layer) else moe_specs(c)),
    }


def top_specs(c: Config) -> dict[str, Spec]:
    return {
        "embed": _one("model.word_embeddings.weight", c.vocab, c.hidden, init="embed"),
        "norm": _one("model.norm.weight", c.hidden, init="one"),
        "head": _one("lm_head.weight", c.vocab, c.hidden),
    }


def specs(c: Config) -> Iterator[tuple[int, str, str, Spec]]:
    """Every field: (layer, or -1 outside the layers; checkpoint prefix; field name; spec)."""
    for field, spec in top_specs(c).items():
        yield -1, "", field, spec
    for layer in range(c.layers):
        for field, spec in layer_specs(c, layer).items():
            yield layer, f"model.layers.{layer}.", field, spec


def build(c: Config, source: Source, dtype: torch.dtype, device: str) -> SimpleNamespace:
    """The weights as nested namespaces (`w.layers[3].q`, shapes as in the specs), each part taken from `source`.

    A matrix keeps `dtype`; what the spec calls fp32 stays fp32.
    """
    out = SimpleNamespace(layers=[SimpleNamespace() for _ in range(c.layers)])
    for layer, prefix, field, spec in specs(c):
        parts = [source(name, spec) for name in spec.names(prefix)]
        kept = torch.float32 if spec.fp32 else dtype
        tensor = torch.empty(spec.shape, dtype=kept, device=device)
        rows = tensor.view(len(parts), *spec.part_shape)
        for row, part in zip(rows, parts, strict=True):
            row.copy_(part.reshape(spec.part_shape))
        setattr(out.layers[layer] if layer >= 0 else out, field, tensor)
    return out


def random(c: Config, seed: int = 0, dtype: torch.dtype = torch.bfloat16, device: str = "cuda") -> SimpleNamespace:
    """Seeded random weights whose activations neither die nor blow up over the layers."""
    return drawn(c, torch.Generator(device).manual_seed(seed), dtype, device)


def drawn(c: Config, generator: torch.Generator, dtype: torch.dtype, device: str) -> SimpleNamespace:
    """As `random`. The same on every device, if the generator is of one kind."""
    return build(c, lambda _, spec: _draw(spec, c, generator), dtype, device)


def _draw(spec: Spec, c: Config, generator: torch.Generator) -> torch.Tensor:
    shape, device = spec.part_shape, generator.device
    if spec.init == "one":
        return torch.ones(shape, device=device)
    if spec.init in ("a_log", "dt_bias"):
        low, high = {"a_log": (-0.5, 0.5), "dt_bias": (-4.0, 0.0)}[spec.init]
        return torch.empty(shape, device=device).uniform_(low, high, generator=generator)
    std = {"embed": 1.0, "bias": 0.02}.get(spec.init, shape[-1] ** -0.5)
    if spec.init == "branch":  # 2 * layers branches add up to the variance of one
        std /= math.sqrt(2 * c.layers)
    return torch.empty(shape, device=device).normal_(0, std, generator=generator)


def size(c: Config, dtype: torch.dtype) -> int:
    """Bytes of all weights, as `build` keeps them."""
    widths = {True: torch.float32.itemsize, False: dtype.itemsize}
    return sum(math.prod(spec.shape) * widths[spec.fp32] for *_, spec in specs(c))
