"""The Accelerate configuration files are what Accelerate's own loader takes them for, and start what they say."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.utils import DistributedType

import vaswani_transformer.model.layers_vaswani as layers

CONFIGS = Path(__file__).parents[2] / "scripts" / "accelerate"
EXPECTED = {  # name: distributed type, processes over all machines, machines, without a GPU
    "1_cpu": (DistributedType.NO, 1, 1, True),
    "1_gpu": (DistributedType.NO, 1, 1, False),
    "8_gpus": (DistributedType.MULTI_GPU, 8, 1, False),
    "2x8_gpus": (DistributedType.MULTI_GPU, 16, 2, False),
    "8_gpus_fsdp": (DistributedType.FSDP, 8, 1, False),
    "8_cpu_processes": (DistributedType.MULTI_GPU, 8, 1, True),
}
PROBE = """
import torch
from accelerate import Accelerator

accelerator = Accelerator()
assert torch.distributed.get_backend() == "gloo"
print(f"process {accelerator.process_index} of {accelerator.num_processes}\\n", end="", flush=True)
accelerator.wait_for_everyone()  # one that has met the others may end before they have met it
accelerator.end_training()
"""


def load(name):
    return load_config_from_file(str(CONFIGS / f"{name}.yaml"))


def start(name, *arguments, script):
    """`accelerate launch` with a configuration file, in the background, its processes without GPUs."""
    command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(CONFIGS / f"{name}.yaml")]
    environment = os.environ | {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*command, *arguments, str(script)], env=environment, stdout=subprocess.PIPE, encoding="utf-8"
    )


@pytest.fixture
def probe(tmp_path):
    path = tmp_path / "probe.py"
    path.write_text(PROBE)
    return path


@pytest.fixture
def unused_port():
    with socket.socket() as held:  # as long as the test runs, so that no other program is given it
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def test_every_file_is_tested():
    assert {path.stem for path in CONFIGS.iterdir()} == EXPECTED.keys()


@pytest.mark.parametrize("name", EXPECTED)
def test_a_file_says_what_its_name_says(name):
    config = load(name)
    actual = (config.distributed_type, config.num_processes, config.num_machines, config.use_cpu)
    assert actual == EXPECTED[name]


def test_sharding_is_by_the_layers_of_the_model():
    settings = load("8_gpus_fsdp").fsdp_config
    assert settings["fsdp_version"] == 2
    assert settings["fsdp_auto_wrap_policy"] == "TRANSFORMER_BASED_WRAP"
    for name in settings["fsdp_transformer_layer_cls_to_wrap"].split(","):
        assert hasattr(layers, name), name


@pytest.mark.slow
def test_processes_without_a_gpu_work_together(probe):
    launched = start("8_cpu_processes", "--num_processes", "2", "--main_process_port", "0", script=probe)
    output, _ = launched.communicate(timeout=600)
    assert launched.returncode == 0
    assert sorted(output.splitlines()) == ["process 0 of 2", "process 1 of 2"]


@pytest.mark.slow
def test_two_machines_find_each_other(probe, unused_port):
    """Both are this one, each with one process."""
    meeting = ["--num_processes", "2", "--main_process_ip", "127.0.0.1", "--main_process_port", str(unused_port)]
    machines = [start("2x8_gpus", *meeting, "--machine_rank", rank, script=probe) for rank in ("0", "1")]
    outputs = [machine.communicate(timeout=600)[0] for machine in machines]
    assert [machine.returncode for machine in machines] == [0, 0]
    assert outputs == ["process 0 of 2\n", "process 1 of 2\n"]
