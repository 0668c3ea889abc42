"""The models as a table. Dimensions of Ling-3.0: its published config.json files (BailingMoeV3ForCausalLM)."""

from dataclasses import dataclass, replace
from typing import Any

from ling_prof.errors import UserError

Limits = tuple[float | None, ...]
LEAST_TEMPERATURE = 1e-30  # above 0: logits over a smaller one could overflow


@dataclass(frozen=True)
class Config:
    """One BailingMoeV3 model; sizes in elements, per rank where `ranks` > 1.

    Layer i is MLA when (i + 1) is a multiple of `layer_group`, else KDA; the first `dense_layers` have a plain MLP.
    """

    name: str
    hidden: int
    layers: int
    layer_group: int
    heads: int
    q_lora: int | None  # None: q is one full-rank projection
    experts: int
    top_k: int
    groups: int  # of experts
    kept_groups: int
    moe_intermediate: int
    shared_intermediate: int
    dense_intermediate: int
    dense_layers: int
    vocab: int
    max_positions: int
    routed_scaling: float = 2.5
    kda_dim: int = 128  # of k and of v, per head
    conv: int = 4
    gate_bound: float | None = -5.0  # lower bound of KDA's log decay; None: the unbounded softplus gate
    kv_lora: int = 512
    nope: int = 128
    rope: int = 64
    v_dim: int = 128
    rope_theta: float | None = 6e6  # None: no position encoding
    head_gate: bool = True  # MLA's sigmoid gate, one number a head
    eps: float = 1e-6
    expert_limits: Limits = ()  # SwiGLU clamp of the routed experts, per layer; empty: none
    shared_limits: Limits = ()
    pad: int | None = None
    eos: int | None = None
    ranks: int = 1  # the tensor-parallel ranks this is one of; collectives are left out

    def is_mla(self, layer: int) -> bool:
        return (layer + 1) % self.layer_group == 0

    def is_dense(self, layer: int) -> bool:
        return layer < self.dense_layers

    @property
    def kda_width(self) -> int:
        return self.heads * self.kda_dim

    @property
    def mla_layers(self) -> int:
        return sum(map(self.is_mla, range(self.layers)))

    @property
    def kda_layers(self) -> int:
        return self.layers - self.mla_layers

    def shard(self, ranks: int) -> "Config":
        """What one of `ranks` tensor-parallel ranks holds: heads, intermediate sizes and vocabulary divided; MLA's
        latent projections, the router and the norms whole."""
        if ranks < 1:
            raise UserError(f"{self.name} cannot be cut into {ranks} ranks; take 1 or more.")
        cut = ("heads", "moe_intermediate", "shared_intermediate", "dense_intermediate", "vocab")
        if uneven := [field for field in cut if getattr(self, field) % ranks]:
            raise UserError(f"{self.name} cannot be cut into {ranks} ranks: {', '.join(uneven)} would not divide.")
        sizes: dict[str, Any] = {field: getattr(self, field) // ranks for field in cut}
        return replace(self, name=f"{self.name}-tp{ranks}-rank", ranks=ranks, **sizes)


def _limits(layers: int, spans: dict[float, range]) -> Limits:
    return tuple(next((limit for limit, span in spans.items() if i in span), None) for i in range(layers))


FLASH = Config(
    name="ling-3.0-flash",
    hidden=2560,
    layers=42,
    layer_group=6,
    heads=32,
    q_lora=None,
    experts=512,
    top_k=8,
    groups=8,
    kept_groups=4,
    moe_intermediate=768,
    shared_intermediate=768,
    dense_intermediate=6144,
    dense_layers=2,
    vocab=157184,
    max_positions=262144,
    expert_limits=_limits(42, {4.0: range(35, 42)}),
    shared_limits=_limits(42, {5.0: range(34, 40), 7.0: range(40, 42)}),
    pad=156892,
    eos=156895,
)
TINY = Config(
    name="ling-3.0-tiny",
    hidden=1536,
    layers=24,
    layer_group=4,
    heads=16,
    q_lora=256,
    experts=128,
    top_k=8,
    groups=8,
    kept_groups=4,
    moe_intermediate=512,
    shared_intermediate=512,
    dense_intermediate=4608,
    dense_layers=1,
    vocab=157184,
    max_positions=131072,
    pad=156892,
)
NANO = Config(
    name="nano",
    hidden=64,
    layers=4,
    layer_group=2,
    heads=2,
    q_lora=32,
    experts=16,
    top_k=4,
    groups=4,
    kept_groups=2,
    moe_intermediate=32,
    shared_intermediate=32,
    dense_intermediate=96,
    dense_layers=1,
    vocab=512,
    max_positions=4096,
    kda_dim=32,
    kv_lora=32,
    nope=16,
    rope=16,
    v_dim=16,
    expert_limits=(None, None, 0.5, 0.5),
    shared_limits=(None, None, None, 0.7),
)
MODELS = {config.name: config for config in (FLASH, TINY, FLASH.shard(4), NANO)}


def named(name: str) -> Config:
    """The model of that name. Raises UserError with the list of those there are."""
    if name not in MODELS:
        raise UserError(f"no model {name!r:.80}; there are {', '.join(MODELS)}, or a checkpoint folder.")
    return MODELS[name]
