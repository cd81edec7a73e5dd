"""The cost of a training in floating-point operations (FLOP): as table 2 of the paper estimates it, and counted."""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..data.batching import TokenizedPairs, plan_updates
from ..data.preparation import read_preparation
from ..files import blaming, read_object
from ..model.attention_window_vaswani import window_reach
from ..model.configuration_vaswani import VaswaniConfig
from .log import LOG_FILE, read_log
from .run_folder import RECIPE_FILE

# The paper, sections 5.2 and 6.1: eight P100.
PAPER_DEVICES, PAPER_DEVICE = 8, "P100"
PAPER_HOURS = {"base": 12.0, "big": 3.5 * 24}
# Table 2: BLEU on newstest2014 English-German and English-French, and FLOP of the training for each.
PAPER_TABLE = (
    ("ByteNet", 23.75, None, None, None),
    ("Deep-Att + PosUnk", None, 39.2, None, 1.0e20),
    ("GNMT + RL", 24.6, 39.92, 2.3e19, 1.4e20),
    ("ConvS2S", 25.16, 40.46, 9.6e18, 1.5e20),
    ("MoE", 26.03, 40.56, 2.0e19, 1.2e20),
    ("Deep-Att + PosUnk, ensemble", None, 40.4, None, 8.0e20),
    ("GNMT + RL, ensemble", 26.30, 41.16, 1.8e20, 1.1e21),
    ("ConvS2S, ensemble", 26.36, 41.29, 7.7e19, 1.2e21),
    ("Transformer, base", 27.3, 38.1, 3.3e18, None),
    ("Transformer, big", 28.4, 41.8, 2.3e19, None),
)
# FLOP per second of a device in float32, and of matrix products in bfloat16 or float16 that are summed in float32,
# without sparsity. The first four are the paper's estimates of sustained rates. All others are the vendor's peak rates,
# so that the cost is an upper bound, except of float32 on newer GPUs, which train in TF32: give `--device` that rate.
# It takes a measured one too.
RATES: dict[str, tuple[float, float | None]] = {
    # The paper, footnote 5.
    "K80": (2.8e12, None),
    "K40": (3.7e12, None),
    "M40": (6.0e12, None),
    "P100": (9.5e12, None),
    # NVIDIA's data sheets: V100 (SXM2), T4, A100, H100 (SXM), H200 (SXM), HGX B200 (a GPU of its eight).
    "V100": (15.7e12, 125e12),
    "T4": (8.1e12, 65e12),
    "A100": (19.5e12, 312e12),
    "H100": (67e12, 989e12),
    "H200": (67e12, 989e12),
    "B200": (75e12, 2250e12),
    # NVIDIA's white papers on GA102 and AD102, at the boost clock.
    "RTX3090": (35.6e12, 71e12),
    "RTX4090": (82.6e12, 165.2e12),
    # One core: base clock x 2 FLOP x numbers in a register x multiply-adds per cycle. The last two are 16 x 2 on Intel
    # with two 512-bit units, 8 x 2 on AMD's Zen 3 and Zen 4 (the vendors' optimisation guides).
    "Xeon-8259CL-core": (2.5e9 * 2 * 16 * 2, None),  # Cascade Lake
    "Xeon-8375C-core": (2.9e9 * 2 * 16 * 2, None),  # Ice Lake
    "Xeon-8480C-core": (2.0e9 * 2 * 16 * 2, None),  # Sapphire Rapids
    "EPYC-7763-core": (2.45e9 * 2 * 8 * 2, None),  # Zen 3
    "EPYC-9654-core": (2.4e9 * 2 * 8 * 2, None),  # Zen 4
}


def count_flop(config: VaswaniConfig, source_lengths: np.ndarray, target_lengths: np.ndarray) -> int:
    """Model FLOP of updates on sentences of these lengths in tokens: all products of section 3, padding left out.

    A multiplication and an addition are two, and an update is three times the forward pass. With s source and t target
    tokens of a sentence, a = h (d_k + d_v), W_qo = W_kv = d_model a and W_ff = 2 d_model d_ff, the forward pass is

        encoder layer    2 s (W_qo + W_kv + W_ff)                  +  2 a s^2
        decoder layer    2 t (2 W_qo + W_kv + W_ff) + 2 s W_kv     +  2 a (t (t + 1) / 2 + t s)
        projection       2 t d_model V

    With an `attention_window`, s^2 and t (t + 1) / 2 are the pairs of positions within it. Embeddings, norms, softmax,
    dropout and Adam count nothing.
    """
    s, t = source_lengths.astype(np.int64), target_lengths.astype(np.int64)
    a = config.num_heads * (config.d_k + config.d_v)
    w_qo = w_kv = config.d_model * a
    w_ff = 2 * config.d_model * config.d_ff
    reaches = ((math.inf, math.inf), (math.inf, 0))
    if config.attention_window is not None:
        reaches = (window_reach(config.attention_window, is_causal=is_causal) for is_causal in (False, True))
    (back, ahead), (causal_back, _) = reaches
    encoder_layer = (s * (w_qo + w_kv + w_ff) + a * (s + _count_pairs(s, back) + _count_pairs(s, ahead))).sum()
    causal = t + _count_pairs(t, causal_back)
    decoder_layer = (t * (2 * w_qo + w_kv + w_ff) + s * w_kv + a * (causal + t * s)).sum()
    projection = t.sum() * config.d_model * config.vocab_size
    products = config.encoder_layers * encoder_layer + config.decoder_layers * decoder_layer + projection
    return 3 * 2 * int(products)


def _count_pairs(lengths: np.ndarray, reach: float) -> np.ndarray:
    """Pairs of positions of a sentence that are 1 to `reach` apart, for each of `lengths`."""
    longest = np.minimum(lengths - 1, reach).astype(np.int64)
    return longest * lengths - longest * (longest + 1) // 2


def compute_training_cost(seconds: float, devices: int, rate: float) -> float:
    """FLOP of a training as the paper counts them (section 6.1), from the `rate` of a device in FLOP per second."""
    return seconds * devices * rate


def find_rate(device: str, *, mixed_precision: str = "no") -> float:
    """FLOP per second of a device.

    Args:
        device: a name of `RATES`, in any case, or the rate itself.
        mixed_precision: of the run: "no", "bf16" or "fp16".

    Raises:
        ValueError: if the device is unknown, or has no rate in half precision.
    """
    rates = {name.lower(): pair for name, pair in RATES.items()}.get(device.lower())
    if rates is None:
        try:
            rate = float(device)
        except ValueError:
            rate = math.nan
        if not 0 < rate < math.inf:
            raise ValueError(
                f"there is no rate for the device {device!r}. Give its rate in FLOP per second, such as 1.6e11, "
                f"or one of: {', '.join(RATES)}."
            )
        return rate
    full, half = rates
    if mixed_precision == "no":
        return full
    if half is None:
        raise ValueError(
            f"the run multiplied in {mixed_precision}, for which there is no rate of {device}: give its rate in FLOP "
            f"per second."
        )
    return half


@dataclass(frozen=True)
class RunCost:
    """Values of a run folder on which its cost depends."""

    config: VaswaniConfig
    tokens_per_batch: int
    bucketed: bool
    seed: int
    data_fingerprint: str
    mixed_precision: str
    num_processes: int
    num_parameters: int
    seconds: float  # over all sittings, evaluations and checkpoints included, as in the paper's 12 hours
    updates: int
    target_tokens: float  # of these updates, estimated from the log

    @classmethod
    def read(cls, folder: Path) -> "RunCost":
        """Read recipe.json and the log.

        Raises:
            FileNotFoundError: if one of them is missing.
            ValueError: if the log holds no update, or if one of them is damaged.
        """
        path = folder / RECIPE_FILE
        if not path.exists():
            raise FileNotFoundError(f"{folder} holds no {RECIPE_FILE}; name a folder that `vaswani train` has written.")
        description, log = read_object(path), read_log(folder)
        lines = [line for line in log if "seconds" in line]
        if not lines:
            raise ValueError(f"{folder / LOG_FILE} tells of no update yet: there is no line of training to count.")
        with blaming(folder / LOG_FILE):
            target_tokens = estimate_target_tokens(log)
        with blaming(path):
            recipe = description["recipe"]
            return cls(
                config=VaswaniConfig(**{"vocab_size": recipe["vocab_size"]} | recipe["model"]),
                tokens_per_batch=int(recipe["tokens_per_batch"]),
                bucketed=bool(recipe.get("bucketed")),
                seed=int(description["seed"]),
                data_fingerprint=str(description["data"]),
                mixed_precision=str(description["mixed_precision"]),
                num_processes=int(description["num_processes"]),
                num_parameters=int(description["num_parameters"]),
                seconds=float(lines[-1]["seconds"]),
                updates=lines[-1]["update"],
                target_tokens=target_tokens,
            )

    @property
    def weight_flop(self) -> float:
        """6 x parameters x tokens: `count_flop` without attention, if both sides have as many tokens."""
        return 6 * self.num_parameters * self.target_tokens

    def count(self, data: Path) -> float:
        """`count_flop` of all updates, on the prepared data of the run in the folder `data`.

        Raises:
            FileNotFoundError: if there is no prepared data.
            ValueError: if it is damaged, or that of another run.
        """
        if read_preparation(data)["fingerprint"] != self.data_fingerprint:
            raise ValueError(f"{data} holds other data than the run was trained on; name the folder it was trained on.")
        pairs = TokenizedPairs.load(data / "train", pad_token_id=self.config.pad_token_id)
        lengths = pairs.sources.lengths, pairs.targets.lengths
        options = {"tokens_per_batch": self.tokens_per_batch, "bucketed": self.bucketed}
        updates = plan_updates(*lengths, **options, seed=self.seed, epoch=0)
        return count_flop(self.config, *lengths) * self.updates / len(updates)


def estimate_target_tokens(log: list[dict]) -> float:
    """Target tokens up to the last line of training in the log.

    A line's clock counts the time of evaluations and checkpoints, its speed does not. So tokens per update are the
    mean over the intervals without an evaluation, if there are any.
    """
    clean, others = [], []
    last = {"update": 0, "seconds": 0.0}
    is_clean = True
    for line in log:
        if "seconds" not in line:
            is_clean = False
            continue
        tokens = line["target_tokens_per_second"] * (line["seconds"] - last["seconds"])
        (clean if is_clean else others).append((tokens, line["update"] - last["update"]))
        last, is_clean = line, True
    tokens, updates = np.sum(clean or others, axis=0)
    return float(tokens / updates) * last["update"]
