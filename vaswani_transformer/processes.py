"""What several processes that a launcher has started must know before they work together."""

import os


def check_processes(num_processes: int) -> None:
    """Refuse to work where the processes do not know of each other: each would do all the work.

    Args:
        num_processes: how many Accelerate has found.

    Raises:
        ValueError: if the launcher started another number.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) != num_processes:
        raise ValueError(
            f"the launcher started {os.environ['WORLD_SIZE']} processes, but each takes itself for one of "
            f"{num_processes}. Without GPUs, set ACCELERATE_USE_CPU=true for the launcher."
        )
