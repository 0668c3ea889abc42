"""What a kernel is for, by its name: one table, first match wins. Adding a role or a kernel is adding a row.

The seven roles are those of the reference breakdown of a Ling-3.0 decode step (LMSYS, 2026-08-21); `mla` holds every
softmax attention, `kda` every linear attention and its convolution.
"""

import re

import pandas as pd

ROLES = ("moe_gemm", "small_kernels", "all_reduce", "dense_gemm", "kda", "mla", "other")
LABELS = {
    "moe_gemm": "MoE grouped GEMM",
    "small_kernels": "small kernels (norm, router, activation, glue)",
    "all_reduce": "collectives",
    "dense_gemm": "dense GEMM",
    "kda": "KDA / linear attention",
    "mla": "MLA / attention",
    "other": "other, copies, opaque graphs",
}

TABLE: tuple[tuple[str, str], ...] = (
    (r"^CUDA graph \d+ \(opaque\)", "other"),
    (r"^Mem(cpy|set)|^memcpy\d*_post|^Copy(Host|Device)To|^memset", "other"),
    (
        r"nccl|rccl|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|cross_device_reduce|multimem|(one|two)_?shot|deep_?ep|lamport|nvshmem",
        "all_reduce",
    ),
    (
        r"kda|gated_delta|delta_rule|causal_conv1d|conv_depthwise|fla_|chunk_gla|recompute_w_u|layer_norm_gated|mamba|selective_scan|linear_attn",
        "kda",
    ),
    (
        r"moe_align|moe_sum|topk|top_k|router|routing|finalize|moe_fused_gate|count_and_sort|expert.*(sort|offset)|bitmatrix|reduce_segments",
        "small_kernels",
    ),
    (
        r"fused_moe|moe_gemm|grouped|GroupProblem|group_gemm|matmul_ogs|bmm_Mx|bmm_.*E[24]m|moe.*gemm|fused_experts|marlin_moe",
        "moe_gemm",
    ),
    (
        r"fmha|flash|attention(?!.*(copy|fused))|_fwd_kernel|_fwd_grouped_kernel|mla|sdpa|paged|decode_kernel_stage|BatchDecode|BatchPrefill|merge_state",
        "mla",
    ),
    (r"gemm|gemv|nvjet|cublas|cutlass(?!.*norm)|xmma|Cijk_|splitKreduce|matvec|ampere_.*(s|h)gemm|wgmma", "dense_gemm"),
    (
        r"norm|act_and_mul|silu|gelu|swiglu|rope|rotary|softmax|argmax|elementwise|reduce_kernel|gather|index|embedding|cat|copy|fill|scan|"
        r"triton_|store_kvcache|reshape_and_cache|kv_indices|sample|quant|multi_tensor|token|position|alloc|arange|sort|where|compare|memset",
        "small_kernels",
    ),
)
_COMPILED = tuple((re.compile(pattern, re.I), role) for pattern, role in TABLE)
_unknown = {role for _, role in TABLE} - set(ROLES)
if _unknown:
    raise ValueError(f"roles.TABLE names roles that do not exist: {_unknown}")


def role(name: str) -> str:
    """The role of one kernel name; 'other' when no row matches."""
    return next((found for pattern, found in _COMPILED if pattern.search(name)), "other")


def roles(names: pd.Categorical) -> pd.Categorical:
    """The role of each row of a name column."""
    of_category = pd.Categorical([role(n) for n in names.categories], categories=list(ROLES))
    return pd.Categorical.from_codes(of_category.codes[names.codes], categories=list(ROLES))


def layer_kind(name: str) -> str:
    """A layer or range name without its number: 'model.layers.12.mlp' -> 'model.layers.N.mlp'."""
    return re.sub(r"\d+", "N", name)


def short_name(name: str, width: int = 60) -> str:
    """A kernel name without return type and namespaces, cut to `width` characters."""
    bare = re.sub(r"^void |\(anonymous namespace\)::|<unnamed>::|\b(at|native|c10|std|cuda)::", "", name)
    return bare if len(bare) <= width else bare[: width - 3] + "..."
