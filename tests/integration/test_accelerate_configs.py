"""The configuration files of Accelerate configure what their names say, and processes without a GPU work together."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.utils import DistributedType

CONFIGS = Path(__file__).parents[2] / "scripts/accelerate"
EXPECTED = {  # name: distributed type, number of processes on all machines, number of machines, True if on CPUs
    "1_cpu": (DistributedType.NO, 1, 1, True),
    "1_gpu": (DistributedType.NO, 1, 1, False),
    "8_gpus": (DistributedType.MULTI_GPU, 8, 1, False),
    "2x8_gpus": (DistributedType.MULTI_GPU, 16, 2, False),
    "8_cpu_processes": (DistributedType.MULTI_GPU, 8, 1, True),  # With MULTI_CPU, accelerate would start one process.
}
PROBE = "from accelerate import Accelerator; a = Accelerator(); a.wait_for_everyone(); print(a.num_processes)"


@pytest.mark.parametrize("name", EXPECTED)
def test_each_file_configures_what_its_name_says(name):
    config = load_config_from_file(f"{CONFIGS}/{name}.yaml")
    actual = (config.distributed_type, config.num_processes, config.num_machines, config.use_cpu)
    assert actual == EXPECTED[name]


@pytest.mark.slow
def test_processes_without_a_gpu_work_together(tmp_path):
    (tmp_path / "probe.py").write_text(PROBE)
    options = f"--config_file {CONFIGS}/8_cpu_processes.yaml --num_processes 2 --main_process_port 0"
    command = [sys.executable, *f"-m accelerate.commands.launch {options} {tmp_path}/probe.py".split()]
    environment = os.environ | {"ACCELERATE_USE_CPU": "true"}  # Without it, each process would work alone.
    output = subprocess.run(command, env=environment, check=True, capture_output=True).stdout
    assert b"".join(output.split()) == b"22"  # the processes share a pipe, so both digits may precede both line ends
