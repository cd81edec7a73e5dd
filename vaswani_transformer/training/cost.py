"""The cost of a training in floating-point operations (FLOP), by the estimate of table 2 in the paper."""

import contextlib
import math
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForSeq2SeqLM

from ..files import blaming
from ..model.configuration_vaswani import VaswaniConfig
from ..runs import LOG_FILE, RECIPE_FILE, read_description
from .log import read_log

# The FLOP of the paper's English-German models (table 2), which were trained on eight P100 (section 5.2).
PAPER_FLOP = {"base": 3.3e18, "big": 2.3e19}
FLOP_PER_PARAMETER = 6  # for each target token: forward 2, backward 4
# Device -> (FLOP per second in float32, FLOP per second of matrix products in bfloat16 or float16). The products are of
# dense matrices and are summed in float32. The rate of P100 is the paper's estimate of a sustained rate (footnote 5).
# The other rates are peak rates from NVIDIA's data sheets (SXM). So the cost of a run in mixed precision is an upper
# bound. The cost of a run in float32 is not, because its products use TF32, which is faster than float32: give the rate
# of TF32 to `--device`.
RATES = {
    "P100": (9.5e12, None),
    "A100": (19.5e12, 312e12),
    "H100": (67e12, 989e12),
}


def compute_training_cost(seconds: float, devices: int, rate: float) -> float:
    """Return the FLOP of a training as in the paper (section 6.1). `rate` is the FLOP per second of one device."""
    return seconds * devices * rate


def find_rate(device: str, *, mixed_precision: str = "no") -> float:
    """Return FLOP per second of a device.

    Args:
        device: a name of `RATES`, in upper or lower case, or the rate itself as text.
        mixed_precision: "no", "bf16" or "fp16".

    Raises:
        ValueError: if `device` is neither a known name nor a rate, or if it has no rate for this precision.
    """
    rate = None
    with contextlib.suppress(ValueError):
        rates = RATES.get(device.upper())
        rate = rates[mixed_precision != "no"] if rates else float(device)
    if rate is None or not 0 < rate < math.inf:
        raise ValueError(
            f"the rate of {device!r} for mixed precision {mixed_precision} is unknown: give a number in FLOP/s, or one "
            f"of {', '.join(RATES)}."
        )
    return rate


def count_parameters(config: VaswaniConfig) -> Counter[str]:
    """Return the number of parameters of each part of a model: parts of its layers by stack, and what is outside them.

    A matrix that several parts share counts once, as the embeddings.
    """
    with torch.device("meta"):  # Weights on this device take no memory.
        model = AutoModelForSeq2SeqLM.from_config(config)
    counts = Counter()
    for name, parameter in model.named_parameters():
        stack, _, place = name.partition(".layers.")
        found = re.match(r"\d+\.(\w+?)(_residual)?\.", place)
        part = "other" if place else "output projection" if name.startswith("lm_head") else "embeddings"
        if found:
            part = f"{stack.removeprefix('model.')} {'norms' if found[2] else found[1]}"
        counts[part] += parameter.numel()
    return counts


@dataclass(frozen=True)
class RunCost:
    """The values in a run folder from which the cost of the run is computed."""

    seed: int
    mixed_precision: str
    num_processes: int
    num_parameters: int
    seconds: float  # time of training over all starts of the run, with evaluations and checkpoints
    updates: int
    target_tokens: int  # number of target tokens in these updates

    @classmethod
    def read(cls, folder: Path) -> "RunCost":
        """Return the values in recipe.json and in the log of the run in `folder`.

        Raises:
            FileNotFoundError: if one of the two files is missing.
            ValueError: if the log has no line of training yet, or if one of the files is damaged.
        """
        description = read_description(folder)
        lines = [line for line in read_log(folder) if "seconds" in line]
        if not lines:
            raise ValueError(f"{folder / LOG_FILE} has no line of training yet: wait until the run has logged updates.")
        with blaming(folder / LOG_FILE):
            log = {"seconds": float(lines[-1]["seconds"]), "updates": int(lines[-1]["update"])}
            log["target_tokens"] = sum(line["target_tokens"] for line in lines)
        with blaming(folder / RECIPE_FILE):
            values = description | log
            return cls(**{name: kind(values[name]) for name, kind in cls.__annotations__.items()})

    @property
    def weight_flop(self) -> float:
        """FLOP of products with weights: 6 x parameters x target tokens, if sources have as many tokens as targets."""
        return FLOP_PER_PARAMETER * self.num_parameters * self.target_tokens
