"""The precision and the settings of PyTorch that are chosen for a device."""

from itertools import count

import pytest
import torch

from vaswani_transformer import devices
from vaswani_transformer.devices import allow_tf32, choose_precision, limit_threads, turn_off_cudnn_attention


@pytest.mark.parametrize(
    ("option", "by_launcher", "device", "has_bfloat16", "expected"),
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
    monkeypatch, option, by_launcher, device, has_bfloat16, expected
):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", by_launcher)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: has_bfloat16)
    assert choose_precision(option, device) == expected


@pytest.mark.parametrize(("device", "expected"), [("cpu", (True, "highest")), ("cuda", (False, "high"))])
def test_cudnn_attention_is_turned_off_and_tf32_allowed_only_on_cuda(device, expected):
    before = torch.backends.cuda.cudnn_sdp_enabled(), torch.get_float32_matmul_precision()
    try:
        turn_off_cudnn_attention(device)
        allow_tf32(device)
        assert (torch.backends.cuda.cudnn_sdp_enabled(), torch.get_float32_matmul_precision()) == expected
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before[0])
        torch.set_float32_matmul_precision(before[1])


@pytest.mark.parametrize(("cores", "threads"), [(2.0, 2), (1.8, 2), (1.5, 1), (0.4, 1), (5.0, 2)])
@pytest.mark.parametrize("omp_num_threads", [None, "2"])
def test_as_many_threads_are_used_as_the_process_gets_cores_unless_omp_num_threads_is_set(
    monkeypatch, cores, threads, omp_num_threads
):
    before = torch.get_num_threads()
    clock = count()  # each reading lets a second pass, in which the process uses `cores` seconds of its cores' time
    devices._count_cores.cache_clear()
    monkeypatch.setattr(devices.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(devices.time, "process_time", lambda: next(clock) * cores)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if omp_num_threads is not None:  # it has precedence over the number of cores
        monkeypatch.setenv("OMP_NUM_THREADS", omp_num_threads)
    try:
        torch.set_num_threads(2)
        with limit_threads(torch.device("cpu")):
            assert torch.get_num_threads() == (2 if omp_num_threads else threads)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
