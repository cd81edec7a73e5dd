"""The cost of a training in floating-point operations (FLOP), as table 2 of the paper estimates it."""

import math
from dataclasses import dataclass
from pathlib import Path

from ..files import blaming, read_object
from ..runs import LOG_FILE, RECIPE_FILE
from .log import read_log

# The paper, sections 5.2 and 6.1, on eight P100: hours, and FLOP of table 2 (English-German).
PAPER_DEVICES, PAPER_DEVICE = 8, "P100"
PAPER_FLOP = {"base": 3.3e18, "big": 2.3e19}
# FLOP per second of a device in float32, and of matrix products in bfloat16 or float16 that are summed in float32,
# without sparsity. P100: the paper's estimate of a sustained rate (footnote 5). Others: peak rates of NVIDIA's data
# sheets (SXM), so that the cost is an upper bound, except of float32, which trains in TF32: give `--device` that rate.
RATES: dict[str, tuple[float, float | None]] = {
    "P100": (9.5e12, None),
    "V100": (15.7e12, 125e12),
    "A100": (19.5e12, 312e12),
    "H100": (67e12, 989e12),
}


def compute_training_cost(seconds: float, devices: int, rate: float) -> float:
    """Return FLOP of a training as the paper counts them (section 6.1), from the `rate` of a device in FLOP/s."""
    return seconds * devices * rate


def find_rate(device: str, *, mixed_precision: str = "no") -> float:
    """Return FLOP per second of a device.

    `device` is a name of `RATES` in any case, or the rate itself. Raises ValueError if it is neither.
    """
    rate = RATES[device.upper()][mixed_precision != "no"] if device.upper() in RATES else float(device)
    if rate is None or not 0 < rate < math.inf:
        raise ValueError(f"there is no rate of {device!r} for mixed precision {mixed_precision}: give it in FLOP/s.")
    return rate


OF_RECIPE = {"seed": int, "mixed_precision": str, "num_processes": int, "num_parameters": int}  # in recipe.json


@dataclass(frozen=True)
class RunCost:
    """Values of a run folder on which its cost depends."""

    seed: int
    mixed_precision: str
    num_processes: int
    num_parameters: int
    seconds: float  # over all sittings, evaluations and checkpoints included, as in the paper's 12 hours
    updates: int
    target_tokens: int  # of these updates

    @classmethod
    def read(cls, folder: Path) -> "RunCost":
        """Read recipe.json and the log.

        Raises:
            FileNotFoundError: if one of them is missing.
            ValueError: if the log holds no update, or if one of them is damaged.
        """
        path = folder / RECIPE_FILE
        description, lines = read_object(path), [line for line in read_log(folder) if "seconds" in line]
        if not lines:
            raise ValueError(f"{folder / LOG_FILE} has no line of training yet: there is nothing to count.")
        with blaming(folder / LOG_FILE):
            log = {"seconds": float(lines[-1]["seconds"]), "updates": lines[-1]["update"]}
            log["target_tokens"] = sum(line["target_tokens"] for line in lines)
        with blaming(path):
            return cls(**{name: kind(description[name]) for name, kind in OF_RECIPE.items()}, **log)

    @property
    def weight_flop(self) -> float:
        """6 x parameters x tokens: all products but those of attention, if both sides have as many tokens."""
        return 6 * self.num_parameters * self.target_tokens
