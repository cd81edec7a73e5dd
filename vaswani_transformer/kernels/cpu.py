"""Faster dropout, and faster attention in half precision, for training on CPUs."""

import torch
from torch import Tensor, nn
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, PreTrainedModel

from ..model.layers_vaswani import eager_attention

HALF_PRECISION = "vaswani_half_precision"  # name of an attention kernel
# On a CPU in half precision, the backward pass of PyTorch's fused attention takes longer than the backward pass of
# equation 1 as written: 14 times as long at 12 tokens, and 5 times at 100. With more keys, the attention weights would
# take too much memory.
MOST_KEYS = 128


def speed_up_training(model: PreTrainedModel, *, is_half_precision: bool) -> None:
    """Give `model`, which trains on a CPU, a faster dropout, and in half precision a faster attention kernel."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child) is nn.Dropout:
                setattr(module, name, Dropout(child.p))
    if is_half_precision and model.config._attn_implementation == "sdpa":
        model.set_attn_implementation(HALF_PRECISION)


class Dropout(nn.Dropout):
    """Dropout (section 5.4): set entries to zero with probability p, and divide the others by 1 - p.

    On a CPU, PyTorch draws one random number for each entry, which took a sixth of a training step of a small model.
    Here one draw of 64 bits serves four entries. So p is rounded to a multiple of 2^-16.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return `x`, of any shape. In training mode, return `x` after dropout."""
        if not self.training or self.p == 0:
            return x
        if x.device.type != "cpu" or torch.compiler.is_compiling():
            return super().forward(x)
        draws = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
        dropped = min(round(self.p * 2**16), 2**16 - 1)
        keep = draws.view(torch.int16)[: x.numel()].view(x.shape) >= dropped - 2**15
        # `where` stores one byte for each entry until the backward pass. A product with a matrix of zeros and factors
        # would store a number for each entry.
        return torch.where(keep, x, 0).mul_(2**16 / (2**16 - dropped))


def half_precision_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **kwargs,
) -> tuple[Tensor, Tensor | None]:
    """Compute equation 1 as written where the backward pass of PyTorch's fused attention would take longer.

    Otherwise use the kernel "sdpa" of transformers. Arguments and results are those of "sdpa".
    """
    is_small = key.shape[2] <= MOST_KEYS
    sdpa_is_slow = query.dtype in (torch.bfloat16, torch.float16) and query.requires_grad and query.device.type == "cpu"
    attend = eager_attention if is_small and sdpa_is_slow else ALL_ATTENTION_FUNCTIONS["sdpa"]
    return attend(module, query, key, value, attention_mask, **kwargs)


half_precision_attention.computes_equation_1 = True  # So engines may take the place of models with this kernel.
ALL_ATTENTION_FUNCTIONS.register(HALF_PRECISION, half_precision_attention)
ALL_MASK_ATTENTION_FUNCTIONS.register(HALF_PRECISION, sdpa_mask)
