"""The least and the greatest value of the numbers that a user gives, on the command line, in recipes or in files."""

# Without bounds, a typing error or a damaged file could request all memory. Integer bounds require integers.
BOUNDS: dict[str, tuple[float, float]] = {
    "num_beams": (1, 1_000),
    "length_penalty": (-10.0, 10.0),
    "max_length_offset": (0, 10_000),
    "nbest": (1, 1_000),
    "tokens_per_batch": (1, 10_000_000),
    "accumulation_steps": (1, 10_000),
    "num_updates": (1, 1_000_000_000),
    "log_interval": (1, 1_000_000_000),
    "threads": (1, 1_024),
    "divide_widths": (1, 1_024),
    "last": (1, 1_000),
    "vocab_size": (1, 1_000_000),
    "max_length": (1, 100_000),
    "warmup_updates": (1, 1_000_000_000),
    "adam_eps": (0.0, 1.0),
    "lr_scale": (0.0, 1_000_000.0),
    "weight_decay": (0.0, 1_000_000.0),
    "num_averaged_checkpoints": (1, 1_000),
    "patience": (1, 1_000_000),
    "weights": (1, 1_000),
    "num_pairs": (1, 100_000_000),
    "max_length_ratio": (1.0, 1_000.0),
    "max_positions": (1, 65_536),
    "seed": (0, 2**63 - 1),
    "devices": (1, 1_000_000),
    "layer": (1, 1_000),
    "heads": (1, 1_000),
}


def is_within_bounds(name: str, value: object) -> bool:
    """Return True for a number of the right kind between the bounds of `name`."""
    least, most = BOUNDS[name]
    kinds = int if isinstance(least, int) else int | float
    return isinstance(value, kinds) and not isinstance(value, bool) and least <= value <= most


def describe_bounds(name: str) -> str:
    """Describe the values that `name` may have."""
    least, most = BOUNDS[name]
    return f"a {'whole ' if isinstance(least, int) else ''}number from {least:,} to {most:,}"
