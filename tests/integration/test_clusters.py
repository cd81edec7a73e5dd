"""What is written for clusters starts the processes it says, and these understand their arguments."""

import ast
import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from torch.distributed.run import get_args_parser

from vaswani_transformer import cli

ROOT = Path(__file__).parents[2]
SBATCH = ROOT / "scripts" / "clusters" / "slurm.sbatch"
ARGUMENTS = ["--recipe", "base_en_de", "--data", "data", "--output", "my runs/base"]
# srun and scancel write down how they were called; this srun asks the job to stop, as Slurm does near the time limit,
# and ends when scancel has been called.
STUBS = {
    "scontrol": 'if [ "$1" = show ]; then printf "node3\\nnode4\\n"; else echo "scontrol $*" >> "$CALLS"; fi',
    "scancel": 'echo "scancel $*" >> "$CALLS"',
    "srun": """printf "%s\\n" "$@" > "$SRUN"
    case $SIGNAL in
        "") exit "$STATUS" ;;
        *) kill -"$SIGNAL" $PPID; until grep -q scancel "$CALLS" 2> /dev/null; do sleep 0.05; done; exit "$STATUS" ;;
    esac""",
}


def read_options():
    """The #SBATCH lines, by the names of their options."""
    return dict(re.findall(r"^#SBATCH --([\w-]+)=?(.*)$", SBATCH.read_text(), re.MULTILINE))


@pytest.fixture
def run_job(tmp_path):
    """A function that runs the batch script as Slurm would, with its commands replaced.

    It returns the exit status, the arguments of srun, and the calls of scancel and scontrol.
    """
    for name, body in STUBS.items():
        stub = tmp_path / name
        stub.write_text(f"#!/usr/bin/env bash\n{body}\n")
        stub.chmod(0o755)

    def run(signal="", status=0):
        options = read_options()
        slurm = {
            "SLURM_JOB_ID": "17",
            "SLURM_JOB_NUM_NODES": options["nodes"],
            "SLURM_JOB_NODELIST": "node[3-4]",
            "SLURM_GPUS_ON_NODE": options["gpus-per-node"],
            "SLURM_CPUS_PER_TASK": options["cpus-per-task"],
        }
        record = {"CALLS": str(tmp_path / "calls"), "SRUN": str(tmp_path / "srun_arguments")}
        environment = os.environ | slurm | record | {"SIGNAL": signal, "STATUS": str(status)}
        environment["PATH"] = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(["bash", SBATCH, *ARGUMENTS], env=environment, timeout=600, check=False)
        calls = tmp_path / "calls"
        return (
            done.returncode,
            (tmp_path / "srun_arguments").read_text().splitlines(),
            calls.read_text().splitlines() if calls.exists() else [],
        )

    return run


def parse_torchrun(command):
    """Options of torchrun, and of the training that it starts."""
    options = get_args_parser().parse_args(command)
    assert options.module
    assert options.training_script == "vaswani_transformer"
    return options, cli.build_parser().parse_args(options.training_script_args)


def test_the_slurm_job_is_a_bash_script_with_one_task_per_node():
    subprocess.run(["bash", "-n", SBATCH], check=True)
    options = read_options()
    assert options["ntasks-per-node"] == "1"
    assert {"requeue", "signal"} <= options.keys()


def test_the_slurm_job_starts_as_many_processes_as_it_has_gpus(run_job):
    status, arguments, calls = run_job()
    assert (status, calls) == (0, [])
    options, training = parse_torchrun(arguments[arguments.index("torchrun") + 1 :])
    asked = read_options()
    assert (options.nnodes, options.nproc_per_node) == (asked["nodes"], asked["gpus-per-node"])
    assert f"--cpus-per-task={asked['cpus-per-task']}" in arguments
    assert (options.rdzv_backend, options.rdzv_endpoint) == ("c10d", "node3:29500")
    assert (training.command, str(training.output)) == ("train", "my runs/base")


def test_the_slurm_job_has_a_run_saved_and_is_queued_again_before_its_time_ends(run_job):
    where, name, seconds = re.fullmatch(r"(B):(\w+)@(\d+)", read_options()["signal"]).groups()
    assert where == "B"
    _, arguments, calls = run_job(signal=name, status=1)
    assert calls == ["scancel --signal=TERM 17", "scontrol requeue 17"]
    options, _ = parse_torchrun(arguments[arguments.index("torchrun") + 1 :])
    assert options.shutdown_timeout < int(seconds)


def test_a_slurm_job_that_failed_or_had_just_finished_is_not_queued_again(run_job):
    status, _, calls = run_job(status=3)
    assert (status, calls) == (3, [])
    status, _, calls = run_job(signal="USR1")
    assert (status, calls) == (0, ["scancel --signal=TERM 17"])


def read_blocks(language):
    text = (ROOT / "vaswani_transformer" / "training" / "README.md").read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def test_the_kubernetes_pods_start_as_many_processes_as_they_have_gpus():
    (manifest,) = map(yaml.safe_load, read_blocks("yaml"))
    master, worker = (manifest["spec"]["pytorchReplicaSpecs"][name] for name in ("Master", "Worker"))
    assert master["template"] == worker["template"]
    pod = master["template"]["spec"]
    (container,) = pod["containers"]
    assert container["command"][0] == "torchrun"
    options, training = parse_torchrun(container["command"][1:])
    assert int(options.nnodes) == master["replicas"] + worker["replicas"]
    assert int(options.nproc_per_node) == container["resources"]["limits"]["nvidia.com/gpu"]
    assert options.rdzv_endpoint.split(":")[0] == f"{manifest['metadata']['name']}-master-0"
    assert options.shutdown_timeout < pod["terminationGracePeriodSeconds"]
    assert training.command == "train"


def test_the_sagemaker_estimator_gives_arguments_of_training():
    script, estimator = read_blocks("py")
    compile(script, "train.py", "exec")
    (parameters,) = (
        keyword.value
        for node in ast.walk(ast.parse(estimator))
        if isinstance(node, ast.Call)
        for keyword in node.keywords
        if keyword.arg == "hyperparameters"
    )
    arguments = [word for name, value in ast.literal_eval(parameters).items() for word in (f"--{name}", value)]
    assert cli.build_parser().parse_args(["train", *arguments]).recipe == "base_en_de"


def test_the_ray_script_is_python():
    path = ROOT / "scripts" / "clusters" / "ray_train.py"
    compile(path.read_text(encoding="utf-8"), str(path), "exec")
