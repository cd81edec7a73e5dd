"""The batch script for Slurm starts training with valid arguments, and queues its job again at the time limit."""

import os
import subprocess
from pathlib import Path

import pytest
from torch.distributed.run import get_args_parser

from vaswani_transformer import cli

SBATCH = Path(__file__).parents[2] / "scripts/clusters/slurm.sbatch"
SLURM = {
    "SLURM_JOB_ID": "17",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_JOB_NODELIST": "node[3-4]",
    "SLURM_GPUS_ON_NODE": "8",
    "SLURM_CPUS_PER_TASK": "64",
}
# Commands of Slurm, replaced by scripts that record their calls. If SIGNAL is set, the script of srun sends this signal
# to the job, as Slurm does before the time limit, and ends when scancel has been called.
STUBS = {
    "scontrol": 'if [ "$1" = show ]; then printf "node3\\nnode4\\n"; else echo "scontrol $*" >> calls; fi',
    "scancel": 'echo "scancel $*" >> calls',
    "srun": 'printf "%s\\n" "$@" > srun; '
    '[ -z "$SIGNAL" ] || { kill -"$SIGNAL" $PPID; until grep -q scancel calls; do sleep 0.05; done; }; exit "$STATUS"',
}


@pytest.mark.parametrize(
    ("signal", "status", "calls"),
    [
        ("", 3, []),  # the training failed, so the job is not queued again
        ("USR1", 0, ["scancel --signal=TERM 17"]),  # the training was finished, so the job is not queued again
        # torchrun ends with status 1 after a stop, and the training with 75: the job is queued again
        ("USR1", 1, ["scancel --signal=TERM 17", "scontrol requeue 17"]),
        ("USR1", 75, ["scancel --signal=TERM 17", "scontrol requeue 17"]),
    ],
)
def test_the_slurm_job_starts_training_and_is_queued_again_only_if_time_runs_out_before_training_ends(
    tmp_path, signal, status, calls
):
    for name, body in STUBS.items():
        (tmp_path / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "calls").touch()
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | SLURM | {"SIGNAL": signal, "STATUS": str(status), "PATH": path}
    command = ["bash", SBATCH, "--recipe", "base_en_de", "--data", "data", "--output", "my runs/base"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, timeout=600, check=False)
    assert (tmp_path / "calls").read_text().splitlines() == calls
    assert done.returncode == status
    arguments = (tmp_path / "srun").read_text().splitlines()
    options = get_args_parser().parse_args(arguments[arguments.index("torchrun") + 1 :])
    assert (options.nnodes, options.nproc_per_node, options.rdzv_endpoint) == ("2", "8", "node3:29500")
    training = cli.build_parser().parse_args(options.training_script_args)
    assert (training.command, str(training.output)) == ("train", "my runs/base")
