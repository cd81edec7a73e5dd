"""Precision and settings of PyTorch that depend on the device."""

import pytest
import torch

from vaswani_transformer.devices import allow_tf32, avoid_plans_per_shape, choose_precision


@pytest.mark.parametrize(
    ("asked", "launched", "device", "has_bfloat16", "expected"),
    [
        (None, "no", "cuda", True, "bf16"),
        (None, "no", "cuda", False, "no"),
        (None, "fp16", "cuda", True, "fp16"),
        ("no", "bf16", "cuda", True, "no"),
        (None, "no", "cpu", True, "no"),
        (None, "bf16", "cpu", False, "bf16"),
        ("fp16", "no", "cuda", True, "fp16"),
    ],
)
def test_precision_is_chosen_by_option_then_launcher_then_device(
    monkeypatch, asked, launched, device, has_bfloat16, expected
):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", launched)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: has_bfloat16)
    assert choose_precision(asked, device) == expected


@pytest.mark.parametrize(("device", "expected"), [("cpu", (True, "highest")), ("cuda", (False, "high"))])
def test_plans_per_shape_are_avoided_and_tf32_allowed_only_on_cuda(device, expected):
    before = torch.backends.cuda.cudnn_sdp_enabled(), torch.get_float32_matmul_precision()
    try:
        avoid_plans_per_shape(device)
        allow_tf32(device)
        assert (torch.backends.cuda.cudnn_sdp_enabled(), torch.get_float32_matmul_precision()) == expected
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before[0])
        torch.set_float32_matmul_precision(before[1])
