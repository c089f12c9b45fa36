"""How well the device was used."""

import pytest

from perfkit.trace import analyse
from perfkit.trace.device import tensor_core
from tests.unit.trace.recording import Recording


def test_efficiency_occupancy_and_tensor_cores_are_weighted_by_time(tmp_path):
    made = Recording().step(1, 0, 100)
    made.launch("sm90_xmma_gemm", 0, (0, 30), **{"blocks per SM": 0.5, "est. achieved occupancy %": 20})
    made.launch("elementwise_kernel", 1, (40, 10), **{"blocks per SM": 7, "est. achieved occupancy %": 60})
    made.launch("mystery", 2, (60, 10))
    found = analyse(made.load(tmp_path))
    assert found.est_sm_efficiency == pytest.approx((0.5 * 30 + 10) / 100)
    assert found.est_achieved_occupancy == pytest.approx((20 * 30 + 60 * 10) / 40 / 100)
    assert found.tensor_core == pytest.approx({"yes": 0.6, "no": 0.2, "unknown": 0.2})


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("volta_fp16_s884cudnn_fp16_128x128_ldg8_relu_f2f_exp_small_nhwc2nchw_tn_v1", "yes"),
        ("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn", "yes"),
        ("sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32", "yes"),
        ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NTT", "yes"),
        ("cutlass3x_sm100_tensorop_gemm", "yes"),
        ("void pytorch_flash::flash_fwd_kernel<...>", "yes"),
        ("sm80_xmma_wgrad_implicit_gemm_indexed_tf32f32_tf32f32_f32_tensor16x8x8", "yes"),
        ("Cijk_Alik_Bljk_SB_MT64x16x32_MI16x16x1_SN", "yes"),
        ("triton_tem_fused_mm_0", "yes"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>", "no"),
        ("ampere_sgemm_32x128_nt", "no"),
        ("triton_poi_fused_add_cos_sin_0", "no"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "no"),
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float>", "no"),
        ("my_matmul_kernel", "unknown"),
        ("triton_matmul_user", "unknown"),
        ("ampere_gcgemm_64x64_nt", "unknown"),
        ("kernel_0", "unknown"),
    ],
)
def test_tensor_cores_by_name(name, expected):
    assert tensor_core(name) == expected
