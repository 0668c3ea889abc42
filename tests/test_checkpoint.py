"""Checkpoints written and read back, the published config.json files, and a sentence for each that is refused."""

import json
import sys
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from ling_prof import UserError
from optim.engine import checkpoint, hf_config
from optim.engine.config import FLASH, NANO, TINY, Config
from optim.engine.weights import random, specs

PUBLISHED_TINY: dict[str, Any] = {
    "architectures": ["BailingMoeV3ForCausalLM"],
    "attention_dropout": 0.0,
    "auto_map": {"AutoConfig": "configuration_bailing_moe_v3.BailingMoeV3Config"},
    "dtype": "bfloat16",
    "embedding_dropout": 0.0,
    "eos_token_id": 156895,
    "expert_swiglu_limit_list": None,
    "first_k_dense_replace": 1,
    "gated_attention_proj_granularity_type": "head_wise",
    "group_norm_size": 1,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 1536,
    "initializer_range": 0.02,
    "intermediate_size": 4608,
    "kda_lower_bound": -5,
    "kda_safe_gate": True,
    "kv_lora_rank": 512,
    "layer_group_size": 4,
    "linear_silu": True,
    "max_position_embeddings": 131072,
    "max_window_layers": 20,
    "model_type": "bailing_hybrid",
    "moe_intermediate_size": 512,
    "moe_router_enable_expert_bias": True,
    "moe_shared_expert_intermediate_size": 512,
    "mtp_loss_scaling_factor": 0,
    "mtp_use_kda": False,
    "n_group": 8,
    "no_kda_lora": True,
    "norm_topk_prob": True,
    "num_attention_heads": 16,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 24,
    "num_key_value_heads": 16,
    "num_kv_heads_for_linear_attn": 0,
    "num_nextn_predict_layers": 0,
    "num_shared_experts": 1,
    "output_dropout": 0.0,
    "output_router_logits": False,
    "pad_token_id": 156892,
    "partial_rotary_factor": 0.5,
    "pregate_enabled": True,
    "pregate_inference": False,
    "pregate_opd_strategy": "none",
    "q_lora_rank": 256,
    "qk_head_dim": 192,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-06,
    "rope_interleave": True,
    "rope_parameters": {"partial_rotary_factor": 0.5, "rope_theta": 6000000, "rope_type": "default"},
    "rope_scaling": None,
    "rope_theta": 6000000,
    "rotary_dim": 64,
    "routed_scaling_factor": 2.5,
    "router_dtype": "fp32",
    "scale_router_input": False,
    "score_function": "sigmoid",
    "scoring_func": "sigmoid",
    "seq_aux": True,
    "share_expert_swiglu_limit_list": None,
    "short_conv_kernel_size": 4,
    "tie_word_embeddings": False,
    "topk_group": 4,
    "topk_method": "noaux_tc",
    "transformers_version": "5.8.1",
    "up_proj_norm": False,
    "use_bias": False,
    "use_cache": False,
    "use_kda_lora": False,
    "use_mla_nope": False,
    "use_nGPT": False,
    "use_qk_norm": True,
    "use_qkv_bias": False,
    "v_head_dim": 128,
    "value_norm": False,
    "vocab_size": 157184,
}
PUBLISHED_FLASH = PUBLISHED_TINY | {
    "expert_swiglu_limit_list": [0] * 35 + [4] * 7,
    "share_expert_swiglu_limit_list": [0] * 34 + [5] * 6 + [7] * 2,
    "first_k_dense_replace": 2,
    "hidden_size": 2560,
    "intermediate_size": 6144,
    "kda_lower_bound": -5.0,
    "layer_group_size": 6,
    "max_position_embeddings": 262144,
    "moe_intermediate_size": 768,
    "moe_shared_expert_intermediate_size": 768,
    "num_attention_heads": 32,
    "num_experts": 512,
    "num_hidden_layers": 42,
    "num_key_value_heads": 32,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": None,
    "torch_dtype": "bfloat16",
}
GONE = object()  # as the value of a change: the field is taken out


def written(folder: Path, base: dict[str, Any], changes: dict[str, Any]) -> Path:
    raw = {field: value for field, value in (base | changes).items() if value is not GONE}
    (folder / "config.json").write_text(json.dumps(raw))
    return folder


def refusal(call: Any, *args: Any, **more: Any) -> str:
    """The sentence of a UserError: one line, one full stop at its end."""
    with pytest.raises(UserError) as caught:
        call(*args, **more)
    says = str(caught.value)
    assert "\n" not in says
    assert says.endswith(".")
    assert not says.endswith("..")
    return says


def tensors_of(config: Config, weights: SimpleNamespace) -> dict[tuple[int, str], torch.Tensor]:
    at = {-1: weights} | dict(enumerate(weights.layers))
    return {(layer, field): getattr(at[layer], field) for layer, _, field, _ in specs(config)}


def assert_same(config: Config, one: SimpleNamespace, other: SimpleNamespace) -> None:
    theirs = tensors_of(config, other)
    for key, mine in tensors_of(config, one).items():
        assert mine.dtype == theirs[key].dtype, key
        assert torch.equal(mine, theirs[key]), key


@pytest.fixture(scope="module")
def weights() -> SimpleNamespace:
    return random(NANO, dtype=torch.bfloat16, device="cpu")


@pytest.fixture
def saved(tmp_path, weights) -> Path:
    checkpoint.save(NANO, weights, tmp_path / "saved")
    return tmp_path / "saved"


@pytest.fixture
def change(saved):
    """Rewrites the saved tensors: None takes one out."""

    def apply(**changes: torch.Tensor | None) -> Path:
        path = saved / "model.safetensors"
        tensors = {name: t for name, t in (load_file(path) | changes).items() if t is not None}
        save_file(tensors, path)
        return saved

    return apply


def test_the_published_configs_are_the_table(tmp_path):
    tiny = hf_config.read_config(written(tmp_path, PUBLISHED_TINY, {}))
    assert tiny == replace(TINY, name=tmp_path.name, eos=156895)
    assert hf_config.read_config(written(tmp_path, PUBLISHED_TINY, {"eos_token_id": GONE})).eos is None
    flash = hf_config.read_config(written(tmp_path, PUBLISHED_FLASH, {}))
    assert flash == replace(FLASH, name=tmp_path.name)


def test_every_field_of_config_is_read():
    read = {to for to, _ in hf_config.FIELDS.values()}
    assert read - {"safe"} == {field.name for field in fields(Config)} - {"name", "ranks"}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"kda_safe_gate": False, "kda_lower_bound": 3}, {"gate_bound": None}),
        ({"kda_safe_gate": False, "kda_lower_bound": GONE}, {"gate_bound": None}),
        ({"kda_lower_bound": -2.5}, {"gate_bound": -2.5}),
        ({"gated_attention_proj_granularity_type": None}, {"head_gate": False}),
        ({"rope_theta": GONE}, {"rope_theta": 6e6}),
        ({"rope_parameters": GONE, "rope_theta": 1e4}, {"rope_theta": 1e4}),
        ({"rope_scaling": {"type": "default", "rope_theta": 6000000}}, {}),
        ({"model_type": GONE, "scoring_func": GONE, "rotary_dim": GONE, "qk_head_dim": GONE}, {}),
        ({"expert_swiglu_limit_list": [0, None, 4]}, {"expert_limits": (None, None, 4.0, *[None] * 21)}),
        ({"share_expert_swiglu_limit_list": []}, {"shared_limits": ()}),
        ({"q_lora_rank": GONE, "pad_token_id": GONE}, {"q_lora": None, "pad": None}),
        ({"first_k_dense_replace": 0}, {"dense_layers": 0}),
        ({"num_experts_per_tok": 64, "topk_group": 4}, {"top_k": 64}),
        ({"n_group": 64, "topk_group": 64}, {"groups": 64, "kept_groups": 64}),
        ({"expert_swiglu_limit_list": [0] * 23 + [7.5]}, {"expert_limits": (*[None] * 23, 7.5)}),
    ],
)
def test_variants_that_are_computed(tmp_path, changes, expected):
    config = hf_config.read_config(written(tmp_path, PUBLISHED_TINY, changes))
    assert config == replace(TINY, name=tmp_path.name, eos=156895, **expected)


REFUSED: list[tuple[dict[str, Any], str, str]] = [  # changes to tiny's config.json, the field named, and what is said
    ({"architectures": ["LlamaForCausalLM"]}, "architectures", 'is ["LlamaForCausalLM"]; this engine computes only'),
    ({"architectures": GONE}, "architectures", "lacks"),
    ({"model_type": "llama"}, "model_type", 'computes only "bailing_hybrid"'),
    ({"hidden_size": GONE, "n_group": GONE}, "hidden_size, n_group", "lacks"),
    ({"kda_safe_gate": GONE}, "kda_safe_gate", "lacks"),
    ({"rope_theta": GONE, "rope_parameters": GONE}, "rope_theta", "lacks"),
    ({"hidden_size": "1536"}, "hidden_size", 'is "1536"; it must be a positive integer'),
    ({"hidden_size": 0}, "hidden_size", "is 0; it must be a positive integer"),
    ({"hidden_size": True}, "hidden_size", "is true; it must be a positive integer"),
    ({"hidden_size": 1536.0}, "hidden_size", "is 1536.0; it must be a positive integer"),
    ({"hidden_size": 10**400}, "hidden_size", "it must be a positive integer"),
    ({"first_k_dense_replace": -1}, "first_k_dense_replace", "is -1; it must be an integer of 0 or more"),
    ({"rms_norm_eps": float("nan")}, "rms_norm_eps", "it must be a positive number"),
    ({"rms_norm_eps": 0}, "rms_norm_eps", "is 0; it must be a positive number"),
    ({"rms_norm_eps": 10**400}, "rms_norm_eps", "it must be a positive number"),
    ({"routed_scaling_factor": None}, "routed_scaling_factor", "is null; it must be a positive number"),
    ({"q_lora_rank": 0}, "q_lora_rank", "is 0; it must be a positive integer or null"),
    ({"eos_token_id": [1, 2]}, "eos_token_id", "is [1, 2]; it must be one token id or null"),
    ({"kda_safe_gate": "false"}, "kda_safe_gate", 'is "false"; it must be true or false'),
    ({"kda_lower_bound": 0}, "kda_lower_bound", "is 0; it must be a number below 0 or null"),
    ({"kda_lower_bound": 0.5}, "kda_lower_bound", "is 0.5; it must be a number below 0 or null"),
    ({"kda_lower_bound": None}, "kda_lower_bound", "is not set; kda_safe_gate needs it"),
    (
        {"gated_attention_proj_granularity_type": "element_wise"},
        "gated_attention_proj_granularity_type",
        'is "element_wise"; it must be "head_wise" or null',
    ),
    ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config", "take the unquantized checkpoint"),
    ({"rope_scaling": {"rope_type": "yarn", "factor": 4}}, "rope_scaling.rope_type", 'is "yarn"; this engine computes'),
    ({"rope_scaling": {"type": "linear"}}, "rope_scaling.type", 'computes only "default"'),
    ({"rope_scaling": 4}, "rope_scaling", "is 4; this engine computes only null"),
    ({"rope_parameters": {"rope_theta": 6000000, "mrope_section": [8]}}, "rope_parameters.mrope_section", "unknown"),
    ({"rope_parameters": {"rope_theta": 10000}}, "rope_parameters.rope_theta", "is 10000 but rope_theta is 6000000;"),
    ({"qk_head_dim": 128}, "qk_head_dim", "but qk_nope_head_dim + qk_rope_head_dim is 192; make them agree"),
    ({"rotary_dim": 32}, "rotary_dim", "is 32 but qk_rope_head_dim is 64"),
    ({"num_key_value_heads": 4}, "num_key_value_heads", "is 4 but num_attention_heads is 16"),
    ({"qk_rope_head_dim": 63, "qk_head_dim": 191, "rotary_dim": 63}, "qk_rope_head_dim", "is 63"),
    ({"num_experts": 130}, "num_experts", "is 130; n_group 8 must divide it"),
    ({"num_experts": 8, "num_experts_per_tok": 4}, "num_experts", "groups needs two or more"),
    ({"topk_group": 9}, "topk_group", "is 9; n_group is only 8"),
    ({"num_experts_per_tok": 65}, "num_experts_per_tok", "keeps hold only 64"),
    ({"num_hidden_layers": 22}, "num_hidden_layers", "is 22; layer_group_size 4 must divide it"),
    (
        {"expert_swiglu_limit_list": [0] * 25},
        "expert_swiglu_limit_list",
        "has 25 entries; num_hidden_layers is only 24",
    ),
    ({"share_expert_swiglu_limit_list": [0] * 25}, "share_expert_swiglu_limit_list", "has 25 entries"),
    ({"expert_swiglu_limit_list": [4]}, "expert_swiglu_limit_list", "limits a dense layer; first_k_dense_replace is 1"),
    ({"expert_swiglu_limit_list": [0, -4]}, "expert_swiglu_limit_list", "it must be null or a list of limits"),
    ({"expert_swiglu_limit_list": 4}, "expert_swiglu_limit_list", "is 4; it must be null or a list of limits"),
    ({"attention_sinks": 4, "window": None}, "attention_sinks, window", "unknown field(s)"),
    *[
        ({field: value}, field, f"is {json.dumps(value)}; this engine computes only")
        for field, value in {
            "no_kda_lora": False,
            "use_kda_lora": True,
            "use_mla_nope": True,
            "tie_word_embeddings": True,
            "num_shared_experts": 2,
            "score_function": "softmax",
            "scoring_func": "softmax",
            "topk_method": "greedy",
            "router_dtype": "bf16",
            "hidden_act": "gelu",
            "norm_topk_prob": False,
            "moe_router_enable_expert_bias": False,
            "rope_interleave": False,
            "use_qk_norm": False,
            "linear_silu": False,
            "use_bias": True,
            "use_qkv_bias": True,
            "attention_bias": True,
            "mlp_bias": True,
            "use_sliding_window": True,
            "quantization": 4,
            "rope_parameters": 4,
            "scale_router_input": True,
            "value_norm": True,
            "up_proj_norm": True,
            "use_nGPT": True,
            "pregate_inference": True,
            "group_norm_size": 4,
            "num_kv_heads_for_linear_attn": 8,
        }.items()
    ],
]


@pytest.mark.parametrize(("changes", "field", "found"), REFUSED, ids=lambda value: value if type(value) is str else "")
def test_a_config_that_is_refused_names_file_and_field(tmp_path, changes, field, found):
    says = refusal(hf_config.read_config, written(tmp_path, PUBLISHED_TINY, changes))
    assert says.startswith(f"{tmp_path / 'config.json'}: ")
    assert field in says.removeprefix(f"{tmp_path / 'config.json'}: ")
    assert found in says


def test_unknown_fields_are_read_over_when_asked(tmp_path):
    folder = written(tmp_path, PUBLISHED_TINY, {"attention_sinks": 4})
    assert hf_config.read_config(folder, allow_unknown=True).layers == 24
    folder = written(tmp_path, PUBLISHED_TINY, {"attention_sinks": 4, "use_bias": True})
    assert "use_bias" in refusal(hf_config.read_config, folder, allow_unknown=True)


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (None, "No such file"),
        (b'{"a": ', "Expecting value"),
        (b"\xff\xfe", "decode"),
        (b"[1, 2]", "holds [1, 2] where an object should be"),
        (b"[" * 200_000, "recursion"),
    ],
)
def test_a_config_file_that_cannot_be_read(tmp_path, content, found):
    if content is not None:
        (tmp_path / "config.json").write_bytes(content)
    says = refusal(hf_config.read_config, tmp_path)
    assert says.startswith(f"{tmp_path / 'config.json'}: ")
    assert found in says


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_model_comes_back_bit_by_bit(tmp_path, dtype):
    before = random(NANO, seed=3, dtype=dtype, device="cpu")
    checkpoint.save(NANO, before, tmp_path / "there")
    config, after = checkpoint.load(tmp_path / "there", dtype, "cpu")
    assert config == replace(NANO, name="there")
    assert_same(NANO, before, after)
    assert sorted(path.name for path in (tmp_path / "there").iterdir()) == ["config.json", "model.safetensors"]
    raw = json.loads((tmp_path / "there/config.json").read_text())
    assert raw["dtype"] == str(dtype).removeprefix("torch.")
    assert raw.keys() - PUBLISHED_TINY.keys() == {"attention_bias", "mlp_bias", "use_sliding_window"}
    assert "quantization_config" not in raw


@pytest.mark.parametrize(
    "changes",
    [
        {"q_lora": None, "gate_bound": None, "head_gate": False, "dense_layers": 0},
        {"expert_limits": (), "shared_limits": (), "pad": 3, "eos": 0, "routed_scaling": 1.5, "eps": 1e-5},
    ],
)
def test_other_shapes_of_model_come_back(tmp_path, changes):
    odd = replace(NANO, name="odd", **changes)
    before = random(odd, dtype=torch.bfloat16, device="cpu")
    checkpoint.save(odd, before, tmp_path / "odd")
    config, after = checkpoint.load(tmp_path / "odd", torch.bfloat16, "cpu")
    assert config == odd
    assert_same(odd, before, after)


def test_names_and_shapes_are_those_of_the_published_checkpoints(saved, weights):
    tensors = load_file(saved / "model.safetensors")
    w = weights.layers
    assert tensors["model.layers.0.attention.q_conv1d.weight"].shape == (64, 1, 4)
    assert torch.equal(tensors["model.layers.2.mlp.experts.5.up_proj.weight"], w[2].w13[5, 32:])
    assert torch.equal(tensors["model.layers.1.mlp.shared_experts.gate_proj.weight"], w[1].shared_gate_up[:32])
    assert torch.equal(tensors["model.layers.3.attention.kv_a_proj_with_mqa.weight"], w[3].kv_a)
    assert tensors["model.layers.1.mlp.gate.expert_bias"].dtype == torch.float32
    assert tensors["lm_head.weight"].dtype == torch.bfloat16


def test_shards_hold_the_same(tmp_path, weights):
    checkpoint.save(NANO, weights, tmp_path / "shards", shard_bytes=100_000)
    files = sorted((tmp_path / "shards").glob("*.safetensors"))
    assert len(files) > 3
    assert files[0].name == f"model-00001-of-{len(files):05}.safetensors"
    index = json.loads((tmp_path / "shards/model.safetensors.index.json").read_text())
    assert {name: file.name for file in files for name in load_file(file)} == index["weight_map"]
    assert_same(NANO, weights, checkpoint.load(tmp_path / "shards", torch.bfloat16, "cpu")[1])


def test_layers_of_mtp_are_left_out(change, weights):
    """As many as the configuration names, and no more: else a shortened model would pass for the whole."""
    folder = change(**{"model.layers.4.eh_proj.weight": torch.ones(3)})
    assert "1 tensor(s) unexpected, such as model.layers.4" in refusal(checkpoint.load, folder, torch.bfloat16, "cpu")
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_nextn_predict_layers": 1}))
    config, after = checkpoint.load(folder, torch.bfloat16, "cpu")
    assert config.layers == len(after.layers) == 4
    assert_same(NANO, weights, after)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_nextn_predict_layers": -1}))
    assert "num_nextn_predict_layers is -1" in refusal(checkpoint.load, folder, torch.bfloat16, "cpu")


@pytest.mark.parametrize(("field", "value"), [("num_hidden_layers", 2**31 - 2), ("num_experts", 2**31 - 4)])
def test_absurd_sizes_are_refused_at_once(tmp_path, field, value):
    assert f"{field} is {value}" in refusal(hf_config.read_config, written(tmp_path, PUBLISHED_TINY, {field: value}))


def test_a_log_and_conv_weights_in_their_other_shapes(change, saved, weights):
    kda = "model.layers.0.attention."
    tensors = load_file(saved / "model.safetensors")
    others = {f"{kda}A_log": tensors[f"{kda}A_log"][None, None, :, None].clone()}
    others |= {f"{kda}{x}_conv1d.weight": tensors[f"{kda}{x}_conv1d.weight"].squeeze(1).clone() for x in "qkv"}
    assert_same(NANO, weights, checkpoint.load(change(**others), torch.bfloat16, "cpu")[1])


def test_a_half_precision_checkpoint_is_cast(change, weights):
    head = weights.head.float().clamp(-1, 1)
    loaded = checkpoint.load(change(**{"lm_head.weight": head.half()}), torch.float32, "cpu")[1]
    assert loaded.head.dtype == torch.float32
    assert torch.equal(loaded.head, head.half().float())


EXPERT = "model.layers.1.mlp.experts.0.up_proj.weight"


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({EXPERT: None, "lm_head.weight": None}, f"2 tensor(s) missing, such as lm_head.weight, {EXPERT};"),
        ({"model.layers.3.attention.q_proj.weight": torch.ones(2)}, "1 tensor(s) unexpected, such as model.layers.3."),
        ({"model.pregate.weight": torch.ones(2)}, "1 tensor(s) unexpected, such as model.pregate.weight;"),
        ({EXPERT: torch.ones(64, 32)}, f"{EXPERT} is shaped (64, 32), by config.json (32, 64);"),
        ({"model.layers.0.attention.A_log": torch.ones(1, 2)}, "A_log is shaped (1, 2), by config.json (2,);"),
        ({EXPERT: torch.ones(32, 64, dtype=torch.int8)}, f"{EXPERT} is stored as I8;"),
        ({EXPERT: torch.ones(32, 64).to(torch.float8_e4m3fn)}, f"{EXPERT} is stored as F8_E4M3;"),
    ],
)
def test_tensors_that_are_refused(change, changes, found):
    folder = change(**changes)
    says = refusal(checkpoint.load, folder, torch.bfloat16, "cpu")
    assert says.startswith(str(folder))
    assert found in says


def test_many_missing_tensors_are_counted_and_a_few_named(change, saved):
    experts = {name: None for name in load_file(saved / "model.safetensors") if ".experts." in name}
    says = refusal(checkpoint.load, change(**experts), torch.bfloat16, "cpu")
    assert f"{3 * 3 * 16} tensor(s) missing" in says
    assert says.count("model.layers") == 3


def test_files_that_are_broken_or_missing(saved, tmp_path, weights):
    path = saved / "model.safetensors"
    whole = path.read_bytes()
    for broken in (whole[:-1000], whole[:20], b"", b"\xff" * 400):
        path.write_bytes(broken)
        assert refusal(checkpoint.load, saved, torch.bfloat16, "cpu").startswith(f"{path}: ")
    path.unlink()
    says = refusal(checkpoint.load, saved, torch.bfloat16, "cpu")
    assert says.startswith(f"{path}: No such file")


def test_shards_that_are_missing(tmp_path, weights):
    folder = tmp_path / "shards"
    checkpoint.save(NANO, weights, folder, shard_bytes=100_000)
    lost = sorted(folder.glob("*.safetensors"))[1]
    lost.unlink()
    says = refusal(checkpoint.load, folder, torch.bfloat16, "cpu")
    assert says.startswith(f"{folder / 'model.safetensors.index.json'}: names 1 missing file(s), {lost.name};")
    (folder / "model.safetensors.index.json").write_text('{"weight_map": ["a"]}')
    assert 'weight_map is ["a"]' in refusal(checkpoint.load, folder, torch.bfloat16, "cpu")


def test_unknown_fields_stop_a_load_unless_allowed(saved):
    raw = json.loads((saved / "config.json").read_text())
    written(saved, raw, {"attention_sinks": 4})
    assert "attention_sinks" in refusal(checkpoint.load, saved, torch.bfloat16, "cpu")
    assert checkpoint.load(saved, torch.bfloat16, "cpu", allow_unknown=True)[0].layers == 4


@pytest.mark.parametrize(
    ("config", "found"),
    [
        (NANO.shard(2), "nano-tp2-rank is one of 2 ranks"),
        (replace(NANO, rope_theta=None), "nano cannot be saved as a checkpoint: rope_theta is null;"),
        (replace(NANO, layers=3, expert_limits=(), shared_limits=()), "num_hidden_layers is 3;"),
    ],
)
def test_a_config_without_a_checkpoint_form_is_not_saved(tmp_path, weights, config, found):
    assert found in refusal(checkpoint.save, config, weights, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_nothing_is_overwritten(saved, tmp_path, weights):
    before = {path: path.read_bytes() for path in saved.iterdir()}
    assert refusal(checkpoint.save, NANO, weights, saved) == f"{saved}: is not empty; name a new folder."
    assert {path: path.read_bytes() for path in saved.iterdir()} == before
    assert "File exists" in refusal(checkpoint.save, NANO, weights, saved / "config.json")
    (tmp_path / "empty").mkdir()
    checkpoint.save(NANO, weights, tmp_path / "empty")
    assert hf_config.read_config(tmp_path / "empty").layers == 4


def test_a_failed_write_leaves_no_config(tmp_path, weights, monkeypatch):
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full)
    says = refusal(checkpoint.save, NANO, weights, tmp_path / "full")
    assert says == f"{tmp_path / 'full'}: No space left on device; name a new folder with room."
    assert not list((tmp_path / "full").glob("config*"))


def test_the_config_appears_whole_or_not_at_all(tmp_path, weights, monkeypatch):
    def cut(path: Path, text: str) -> None:
        with path.open("w") as file:
            file.write(text[:20])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", cut)
    refusal(checkpoint.save, NANO, weights, tmp_path / "full")
    assert not (tmp_path / "full/config.json").exists()
    assert (tmp_path / "full/model.safetensors").exists()


def test_the_tokenizer_is_local_and_runs_no_code(saved, monkeypatch):
    def from_pretrained(*asked: Any, **how: Any) -> tuple[Any, ...]:
        if "broken" in (saved / "tokenizer.json").read_text():
            raise ValueError("two\nlines")
        return (*asked, how)

    stub = SimpleNamespace(AutoTokenizer=SimpleNamespace(from_pretrained=from_pretrained))  # the import takes seconds
    monkeypatch.setitem(sys.modules, "transformers", stub)
    assert checkpoint.tokenizer(saved) is None
    (saved / "tokenizer.json").write_text("{}")
    assert checkpoint.tokenizer(saved) == (saved, {"local_files_only": True, "trust_remote_code": False})
    (saved / "tokenizer.json").write_text("broken")
    assert refusal(checkpoint.tokenizer, saved).startswith(f"{saved}: two lines; ")


def test_no_tokenizer_without_transformers(saved, monkeypatch):
    (saved / "tokenizer.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert checkpoint.tokenizer(saved) is None
