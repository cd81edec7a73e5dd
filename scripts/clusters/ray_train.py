"""Train under Ray Train, one process per worker, on the cluster that `ray.init` finds.

    python scripts/clusters/ray_train.py --workers 16 --recipe base_en_de --data data --output runs/base

All arguments besides --workers go to `vaswani train`. All nodes must see the folders of --data and --output. When a
process fails, Ray starts all processes again, and they continue from the last checkpoint. To train without GPUs, set
ACCELERATE_USE_CPU=true in the environment.
"""

import argparse
import os
import socket
import subprocess
import sys
from pathlib import Path

import torch
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer


def train(settings: dict) -> None:
    """Run `vaswani train` in a child process of this worker.

    A child process is needed, because Ray calls this function outside the main thread, and Python handles SIGTERM only
    in the main thread of a process. The processes find each other by the variables that Ray has set in the environment.
    Only the port is new, because Ray's process group already uses the port in the environment.
    """
    with socket.socket() as listener:
        listener.bind(("", 0))
        port = [listener.getsockname()[1]]
    torch.distributed.broadcast_object_list(port)
    command = [sys.executable, "-m", "vaswani_transformer", "train", *settings["arguments"]]
    environment = os.environ | {"MASTER_PORT": str(port[0]), "ACCELERATE_USE_CPU": settings["use_cpu"]}
    subprocess.run(command, check=True, cwd=settings["folder"], env=environment)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, required=True, help="number of processes on all nodes, one GPU each")
    args, arguments = parser.parse_known_args()
    use_cpu = os.environ.get("ACCELERATE_USE_CPU", "false")
    settings = {"arguments": arguments, "folder": str(Path.cwd()), "use_cpu": use_cpu}
    TorchTrainer(
        train,
        train_loop_config=settings,
        torch_config=TorchConfig(backend="gloo"),  # Ray's process group serves only to agree on the port
        scaling_config=ScalingConfig(num_workers=args.workers, use_gpu=use_cpu != "true"),
        run_config=RunConfig(failure_config=FailureConfig(max_failures=3)),
    ).fit()


if __name__ == "__main__":
    main()
