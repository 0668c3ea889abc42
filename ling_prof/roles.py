"""What a kernel is for, by its name: one table of (role, patterns), first match wins. Adding a kernel is adding a row.

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

TABLE: tuple[tuple[str, ...], ...] = (
    ("other", r"^CUDA graph \d+ \(opaque\)", r"^Mem(cpy|set)", r"^Copy(Host|Device)To"),
    (
        "all_reduce",
        "nccl",
        "rccl",
        "all_?reduce",
        "all_?gather",
        "reduce_?scatter",
        "all_?to_?all",
        "cross_device_reduce",
    ),
    ("all_reduce", "multimem", "(one|two)_?shot", "deep_?ep", "lamport", "nvshmem"),
    (
        "kda",
        "kda",
        "gated_delta",
        "delta_rule",
        "causal_conv1d",
        "conv_depthwise",
        "fla_",
        "chunk_gla",
        "recompute_w_u",
    ),
    ("kda", "layer_norm_gated", "lightning_att", "mamba", "selective_scan", "linear_attn"),
    (
        "mla",
        "fmha",
        "flash(?!infer)",
        "attention(?!.*(copy|fused))",
        "_fwd_kernel",
        "_fwd_grouped_kernel",
        "sdpa",
        "paged",
    ),
    ("mla", "(?<![a-z])mla(?![a-z])", "decode_kernel_stage", "BatchDecode", "BatchPrefill", "merge_state"),
    ("moe_gemm", "experts_(up|down)", "moe_front"),
    ("small_kernels", "head_token", "seam_embed"),
    ("dense_gemm", "head_argmax"),
    ("small_kernels", "moe_align", "moe_sum", "top_?k", "router", "routing", "finalize", "moe_fused_gate", "bitmatrix"),
    ("small_kernels", "moe_combine", "count_and_sort", "expert.*(sort|offset)", "reduce_segments"),
    ("moe_gemm", "fused_moe", "moe.*gemm", "grouped", "GroupProblem", "group_gemm", "matmul_ogs", "fused_experts"),
    ("moe_gemm", "bmm_Mx", "bmm_.*E[24]m", "marlin_moe"),
    ("dense_gemm", "gemm(?!.*layer_?norm)", "gemv", "nvjet", "cublas", "cutlass(?!.*norm)", "xmma", "Cijk_", "matvec"),
    ("dense_gemm", "splitKreduce", "wgmma", "cublasDot", "cublasGemv"),
    ("small_kernels", "norm", "act_and_mul", "silu", "gelu", "swiglu", "rope", "rotary", "softmax", "argmax", "sampl"),
    ("small_kernels", "elementwise", "reduce_kernel", "gather", "index", "embedding", "cat", "copy", "fill", "scan"),
    ("small_kernels", "triton_", "store_kvcache", "reshape_and_cache", "kv_indices", "quant", "multi_tensor", "token"),
    ("small_kernels", "position", "alloc", "arange", "sort", "where", "compare"),
)
_COMPILED = tuple((re.compile("|".join(words), re.I), role) for role, *words in TABLE)
if unknown := {role for role, *_ in TABLE} - set(ROLES):
    raise ValueError(f"roles.TABLE names roles that do not exist: {unknown}")


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


def same_name(name: str) -> str:
    """What a kernel name has in common however it was demangled: without parameters, casts, qualifiers and spaces.

    'void f<(int)4, [lambda(float) (instance 1)]>(T1)' and 'f<4, {lambda(float)#1}>(int)' -> 'f<4,{lambda#1}>'.
    """
    bare = re.sub(r"\(anonymous namespace\)::|<unnamed>::", "", name)
    bare = re.sub(r"\[(?=lambda)", "{", re.sub(r" ?\(instance (\d+)\)\]", r"#\1}", bare))
    inner = ""
    while inner != bare:
        inner, bare = bare, re.sub(r"\([^()]*\)", "", bare)
    bare = re.sub(r"\b(void|const|bool(?= \w))\b|\s", "", re.sub(r"(?<=\d)u?l*\b", "", bare))
    return re.sub(r"\b(true|false)\b", lambda found: str(int(found[0] == "true")), bare) or name


def family(name: str) -> str:
    """A kernel name without template arguments and numbers: one for all its variants."""
    return layer_kind(same_name(name).split("<")[0])
