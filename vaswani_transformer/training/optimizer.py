"""Adam and its learning rate (section 5.3, equation 3)."""

from torch import nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from .recipes import Recipe


def build_optimizer(model: nn.Module, recipe: Recipe) -> AdamW:
    """Return the Adam of section 5.3. AdamW with weight decay 0 is Adam. The schedule multiplies lr by equation 3."""
    return AdamW(
        model.parameters(),
        lr=recipe.lr_scale,
        betas=recipe.adam_betas,
        eps=recipe.adam_eps,
        weight_decay=recipe.weight_decay,
        fused=True,
    )


def inverse_sqrt_lr(step: int, *, d_model: int, warmup_steps: int = 4000) -> float:
    """Return the learning rate of update `step`, counted from 1 (equation 3, section 5.3).

        lrate = d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5)

    The rate rises linearly for `warmup_steps` updates, then falls as 1 / sqrt(step). It is highest at
    step = warmup_steps, where it is (d_model * warmup_steps)^-0.5: 6.99e-4 for the base model.

    Raises:
        ZeroDivisionError: if `step` is 0, where the formula is undefined.
    """
    return d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)


def inverse_sqrt_schedule(optimizer: Optimizer, *, d_model: int, warmup_steps: int = 4000) -> LambdaLR:
    """Return a schedule: the lr of an update is the initial lr of `optimizer` times `inverse_sqrt_lr`.

    In the paper, the initial lr is 1.0.

    Do not pass the schedule to `Accelerator.prepare`, which would let it step once per process at each update. On 8
    GPUs the warm-up would then last 500 updates instead of 4000.
    """
    # LambdaLR counts from 0, the paper from 1.
    return LambdaLR(optimizer, lambda i: inverse_sqrt_lr(i + 1, d_model=d_model, warmup_steps=warmup_steps))
