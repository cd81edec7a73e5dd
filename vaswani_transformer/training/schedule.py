"""The learning rate (equation 3, section 5.3)."""

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR


def inverse_sqrt_lr(step: int, *, d_model: int, warmup_steps: int = 4000) -> float:
    """Learning rate of update `step`, counted from 1 (equation 3, section 5.3).

        lrate = d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5)

    Rises linearly for `warmup_steps` updates, then falls as 1 / sqrt(step). Both branches meet at
    step = warmup_steps, where the rate is (d_model * warmup_steps)^-0.5: 6.99e-4 for the base model.

    Raises:
        ValueError: if `step` < 1; the formula is undefined at 0.
    """
    if step < 1:
        raise ValueError(f"step counts updates from 1, got {step}")
    return d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)


def inverse_sqrt_schedule(optimizer: Optimizer, *, d_model: int, warmup_steps: int = 4000) -> LambdaLR:
    """Multiply the lr of `optimizer`, 1.0 in the paper, by `inverse_sqrt_lr` of each update.

    Do not pass the result to `Accelerator.prepare`: its scheduler wrapper steps once per process, so on 8 GPUs the
    warm-up would last 500 updates instead of 4000.
    """
    # LambdaLR counts from 0, the paper from 1.
    return LambdaLR(optimizer, lambda i: inverse_sqrt_lr(i + 1, d_model=d_model, warmup_steps=warmup_steps))
