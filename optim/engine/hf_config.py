"""The config.json of a BailingMoeV3 checkpoint: what each of its fields means here, and why one cannot be computed."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from ling_prof.errors import UserError
from optim.engine.config import Config


class Kind(NamedTuple):
    """What a value must be, in words and as a test."""

    says: str
    holds: Callable[[Any], bool]


def _int(value: Any, low: int) -> bool:
    return type(value) is int and low <= value < 2**31


def _number(value: Any, low: float, high: float = 1e30) -> bool:
    return type(value) in (int, float) and low < value < high


def _limits(value: Any) -> bool:
    return value is None or (type(value) is list and all(x in (None, 0) or _number(x, 0) for x in value))


SIZE = Kind("a positive integer", lambda v: _int(v, 1))
LAYERS = Kind("an integer from 1 to 1024", lambda v: _int(v, 1) and v <= 1024)  # as many are named one by one
EXPERTS = Kind("an integer from 1 to 4096", lambda v: _int(v, 1) and v <= 4096)
COUNT = Kind("an integer of 0 or more", lambda v: _int(v, 0))
POSITIVE = Kind("a positive number", lambda v: _number(v, 0))
SWITCH = Kind("true or false", lambda v: type(v) is bool)
BOUND = Kind("a number below 0 or null", lambda v: v is None or _number(v, -1e30, 0))
RANK = Kind("a positive integer or null", lambda v: v is None or _int(v, 1))
TOKEN = Kind("one token id or null", lambda v: v is None or _int(v, 0))
GATE = Kind('"head_wise" or null', lambda v: v in ("head_wise", None))
LIMITS = Kind("null or a list of limits, null or 0 for none", _limits)

FIELDS: dict[str, tuple[str, Kind]] = {  # theirs -> ours
    "hidden_size": ("hidden", SIZE),
    "num_hidden_layers": ("layers", LAYERS),
    "layer_group_size": ("layer_group", SIZE),
    "num_attention_heads": ("heads", SIZE),
    "head_dim": ("kda_dim", SIZE),
    "short_conv_kernel_size": ("conv", SIZE),
    "q_lora_rank": ("q_lora", RANK),
    "kv_lora_rank": ("kv_lora", SIZE),
    "qk_nope_head_dim": ("nope", SIZE),
    "qk_rope_head_dim": ("rope", SIZE),
    "v_head_dim": ("v_dim", SIZE),
    "rope_theta": ("rope_theta", POSITIVE),
    "gated_attention_proj_granularity_type": ("head_gate", GATE),
    "kda_safe_gate": ("safe", SWITCH),
    "kda_lower_bound": ("gate_bound", BOUND),
    "num_experts": ("experts", EXPERTS),
    "num_experts_per_tok": ("top_k", SIZE),
    "n_group": ("groups", SIZE),
    "topk_group": ("kept_groups", SIZE),
    "moe_intermediate_size": ("moe_intermediate", SIZE),
    "moe_shared_expert_intermediate_size": ("shared_intermediate", SIZE),
    "intermediate_size": ("dense_intermediate", SIZE),
    "first_k_dense_replace": ("dense_layers", COUNT),
    "routed_scaling_factor": ("routed_scaling", POSITIVE),
    "expert_swiglu_limit_list": ("expert_limits", LIMITS),
    "share_expert_swiglu_limit_list": ("shared_limits", LIMITS),
    "vocab_size": ("vocab", SIZE),
    "max_position_embeddings": ("max_positions", SIZE),
    "rms_norm_eps": ("eps", POSITIVE),
    "pad_token_id": ("pad", TOKEN),
    "eos_token_id": ("eos", TOKEN),
}
FIXED: dict[str, Any] = {  # what the engine computes: these fields may say nothing else
    "architectures": ["BailingMoeV3ForCausalLM"],
    "model_type": "bailing_hybrid",
    "no_kda_lora": True,
    "rope_interleave": True,
    "norm_topk_prob": True,
    "use_qk_norm": True,
    "linear_silu": True,
    "moe_router_enable_expert_bias": True,
    "use_kda_lora": False,
    "use_mla_nope": False,
    "tie_word_embeddings": False,
    "use_bias": False,
    "use_qkv_bias": False,
    "attention_bias": False,
    "mlp_bias": False,
    "value_norm": False,
    "up_proj_norm": False,
    "scale_router_input": False,
    "use_nGPT": False,
    "use_sliding_window": False,
    "pregate_inference": False,
    "quantization_config": None,
    "quantization": None,
    "rope_scaling": None,
    "rope_parameters": None,
    "rope_parameters.rope_type": "default",
    "rope_scaling.rope_type": "default",
    "rope_scaling.type": "default",
    "score_function": "sigmoid",
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "router_dtype": "fp32",
    "hidden_act": "silu",
    "num_shared_experts": 1,
    "group_norm_size": 1,
    "num_kv_heads_for_linear_attn": 0,
}
REPEATS: dict[str, tuple[str, Callable[[Config], Any]]] = {
    "num_key_value_heads": ("num_attention_heads", lambda c: c.heads),
    "qk_head_dim": ("qk_nope_head_dim + qk_rope_head_dim", lambda c: c.nope + c.rope),
    "rotary_dim": ("qk_rope_head_dim", lambda c: c.rope),
    "rope_parameters.rope_theta": ("rope_theta", lambda c: c.rope_theta),
    "rope_scaling.rope_theta": ("rope_theta", lambda c: c.rope_theta),
}
KNOWN = FIELDS.keys() | FIXED.keys() | REPEATS.keys()
NEEDED = [field for field, (_, kind) in FIELDS.items() if "null" not in kind.says]
NEEDED += ["architectures", "no_kda_lora", "num_shared_experts"]
IGNORED = re.compile(  # training and bookkeeping; all of qk_rope_head_dim is rotated, whatever the partial factor says
    r"pregate_\w+|(attention|embedding|hidden|output)_dropout|auto_map|(torch_)?dtype|initializer_range|use_cache|"
    r"max_window_layers|sliding_window|mtp_loss_scaling_factor|mtp_use_kda|num_nextn_predict_layers|bos_token_id|"
    r"output_router_logits|seq_aux|router_aux_loss_coef|transformers_version|_name_or_path|"
    r"((rope_parameters|rope_scaling)\.)?partial_rotary_factor"
)


def read_config(folder: Path, allow_unknown: bool = False) -> Config:
    """The config.json of a BailingMoeV3 checkpoint, named after its folder.

    Raises UserError, naming the file and the field, for what is missing, malformed, contradictory or not computed by
    this engine, and for fields it does not know, unless `allow_unknown`.
    """
    path = folder / "config.json"
    fields = _flat(read_json(path))
    for problem in problems(fields, allow_unknown):
        raise UserError(f"{path}: {problem}.")
    return _config(fields, folder.resolve().name)


@contextmanager
def told(path: Path, remedy: str, *more: type[Exception]) -> Iterator[None]:
    """Errors of reading or writing `path`, and those of `more` kinds, end in one sentence with `remedy`."""
    kinds: tuple[type[Exception], ...] = (OSError, ValueError, KeyError, TypeError, RecursionError, *more)
    try:
        yield
    except kinds as error:
        found = " ".join(str(getattr(error, "strerror", None) or error).split())
        raise UserError(f"{path}: {found:.200}; {remedy}.") from error


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object. Raises UserError for anything else."""
    with told(path, "name the folder of a Hugging Face checkpoint, fully downloaded"):
        found = json.loads(path.read_text("utf-8"))
    if not isinstance(found, dict):
        raise UserError(f"{path}: holds {json.dumps(found):.60} where an object should be; download it again.")
    return found


def _flat(raw: dict[str, Any]) -> dict[str, Any]:
    """The rope tables under dotted names, their rope_theta at the top too; no lower bound without the safe gate."""
    flat: dict[str, Any] = {}
    for key, value in raw.items():
        table = key in ("rope_parameters", "rope_scaling") and isinstance(value, dict)
        flat |= {f"{key}.{inner}": x for inner, x in value.items()} if table else {key: value}
    for key in [key for key in flat if key.endswith(".rope_theta")]:
        flat.setdefault("rope_theta", flat[key])
    return flat | ({"kda_lower_bound": None} if flat.get("kda_safe_gate") is False else {})


def mtp_layers(folder: Path) -> int:
    """Layers that predict further tokens, stored behind the model's own; this engine leaves them out."""
    found = read_json(folder / "config.json").get("num_nextn_predict_layers") or 0
    if not _int(found, 0):
        raise UserError(
            f"{folder / 'config.json'}: num_nextn_predict_layers is {found!r:.60}; it must be {COUNT.says}."
        )
    return found


def _config(fields: dict[str, Any], name: str) -> Config:
    values: dict[str, Any] = {to: fields.get(field) for field, (to, _) in FIELDS.items() if to != "safe"}
    values["head_gate"] = values["head_gate"] is not None
    for side in ("expert_limits", "shared_limits"):
        limits = [x or None for x in values[side] or ()]
        values[side] = (*limits, *[None] * (values["layers"] - len(limits))) if limits else ()
    return Config(name=name, **values)


def to_json(config: Config) -> dict[str, Any]:
    """The inverse of `_config`, with the fields that are fixed or repeat others."""
    gates = {"safe": config.gate_bound is not None, "head_gate": "head_wise" if config.head_gate else None}
    limits = {side: [x or 0 for x in getattr(config, side)] or None for side in ("expert_limits", "shared_limits")}
    values = asdict(config) | gates | limits
    fixed = {field: value for field, value in FIXED.items() if value is not None and "." not in field}
    repeats = {field: of(config) for field, (_, of) in REPEATS.items() if "." not in field}
    return fixed | repeats | {field: values[to] for field, (to, _) in FIELDS.items()}


def problems(fields: dict[str, Any], allow_unknown: bool = False) -> Iterator[str]:
    """Why a config.json cannot be computed, in clauses; each may rely on those before it."""
    for field, value in FIXED.items():
        if field in fields and json.dumps(fields[field]) != json.dumps(value):
            hint = ", so take the unquantized checkpoint" if field.startswith("quantization") else ""
            yield f"{field} is {json.dumps(fields[field]):.60}; this engine computes only {json.dumps(value)}{hint}"
    if absent := [field for field in NEEDED if field not in fields]:
        yield f"lacks {', '.join(absent)}; copy the published config.json of this model"
    for field, (_, kind) in FIELDS.items():
        if not kind.holds(fields.get(field)):
            yield f"{field} is {json.dumps(fields[field]):.60}; it must be {kind.says}"
    config = _config(fields, "")
    for field, (other, of) in REPEATS.items():
        if fields.get(field, of(config)) != of(config):
            yield f"{field} is {json.dumps(fields[field]):.60} but {other} is {of(config)}; make them agree"
    yield from _contradictions(fields, config)
    unknown = ", ".join(f for f in fields if f not in KNOWN and not IGNORED.fullmatch(f))
    if unknown and not allow_unknown:
        remedy = "this engine may not compute what they ask for, so remove them if it need not"
        yield f"unknown field(s) {unknown}; {remedy}"


def _contradictions(fields: dict[str, Any], c: Config) -> Iterator[str]:
    room = c.kept_groups * (c.experts // c.groups)
    rules = [
        (fields["kda_safe_gate"] and not c.gate_bound, "kda_lower_bound is not set; kda_safe_gate needs it below 0"),
        (c.layers % c.layer_group, f"num_hidden_layers is {c.layers}; layer_group_size {c.layer_group} must divide it"),
        (c.rope % 2, f"qk_rope_head_dim is {c.rope}; rotation needs an even number"),
        (c.experts % c.groups, f"num_experts is {c.experts}; n_group {c.groups} must divide it"),
        (c.experts < 2 * c.groups, f"num_experts is {c.experts}; each of n_group {c.groups} groups needs two or more"),
        (c.kept_groups > c.groups, f"topk_group is {c.kept_groups}; n_group is only {c.groups}"),
        (c.top_k > room, f"num_experts_per_tok is {c.top_k}; the groups that topk_group keeps hold only {room}"),
    ]
    for field in ("expert_swiglu_limit_list", "share_expert_swiglu_limit_list"):
        limits, dense = fields.get(field) or [], c.dense_layers
        rules += [
            (len(limits) > c.layers, f"{field} has {len(limits)} entries; num_hidden_layers is only {c.layers}"),
            (any(limits[:dense]), f"{field} limits a dense layer; first_k_dense_replace is {dense}"),
        ]
    yield from (says for broken, says in rules if broken)
