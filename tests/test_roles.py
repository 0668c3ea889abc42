"""What kernels are for, by names seen in real recordings."""

import pytest

from ling_prof.roles import TABLE, role

NAMES = {
    "moe_gemm": [
        "fused_moe_kernel",
        "_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1",
        "bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x16",
    ],
    "small_kernels": [
        "_moe_align_small_numel_kernel",
        "router_gate_topk",
        "void flashinfer::norm::FusedAddRMSNormKernel<8u, __nv_bfloat16>",
        "void sglang::act_and_mul_kernel<__nv_bfloat16>",
        "triton_poi_fused__scaled_dot_product_cudnn_attention__to_copy__unsafe_view",
        "fused_gemmLayerNorm",
    ],
    "all_reduce": [
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "void multimem_all_reduce_kernel<c10::BFloat16, 16>",
        "void sglang::cross_device_reduce_1stage<__nv_bfloat16, 4>",
        "ncclKernel_AllGather_RING_LL_Sum_int8_t",
    ],
    "dense_gemm": ["nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT", "Cijk_Alik_Bljk_BBS_BH", "cutlass::SmemLayoutAtom_gemm"],
    "kda": ["fused_recurrent_kda_packed_decode_kernel", "_causal_conv1d_update_kernel", "lightning_attention_decode"],
    "mla": [
        "_fwd_grouped_kernel_stage1",
        "fmhaSm100fKernel_QkvBfloat16",
        "cudnn_generated_fort_native_sdpa_sm80_flash_fprop",
        "flash_mla_splitkv",
    ],
    "other": ["Memcpy DtoD (Device -> Device)", "Memset (Device)", "memcpy32_post", "CUDA graph 5 (opaque)", "mystery"],
}


@pytest.mark.parametrize(("expected", "name"), [(r, n) for r, names in NAMES.items() for n in names])
def test_role(expected, name):
    assert role(name) == expected


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row[1])
def test_no_row_hides_behind_an_earlier_one(row):
    """Each plain word of a row is given the row's own role."""
    words = [word for word in row[1:] if word.replace("_", "").isalnum()]
    assert {word: role(word) for word in words} == dict.fromkeys(words, row[0])
