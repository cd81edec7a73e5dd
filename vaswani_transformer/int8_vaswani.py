"""Matrix products in integers of 8 bits, for models that translate on a CPU."""

import warnings

import torch
from torch import nn

FEWEST_MULTIPLICATIONS = 2**23  # of a product: with fewer, finding the scale of the input takes longer than is won
LARGE_MATRIX = 2**20  # entries; read as float32 it takes longer than everything else, however few the rows


class Int8Linear(nn.Linear):
    """A linear layer that multiplies in int8 on a CPU where that is faster; anywhere else it is `nn.Linear`.

    Each row of the matrix has a scale of its own, the input one for all of it, found anew at each call: results differ
    from float32 by about 1 %, and a little with what shares the batch. The matrix itself stays what it was, so it is
    saved, tied and trained as ever; its copy in int8, a quarter of its size, is made at the first product and again
    when the matrix has changed. Changes of `weight.data` in place are not noticed: call `train()` after them.
    """

    packed = None  # the copy, in the order in memory that the kernel reads
    packed_of = None  # which state of weight and bias it is a copy of

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., D) -> (..., F)."""
        if not self._is_faster(x):
            return super().forward(x)
        parameters = (p for p in (self.weight, self.bias) if p is not None)
        state = [(p.data_ptr(), None if p.is_inference() else p._version) for p in parameters]
        if state != self.packed_of:
            self.packed, self.packed_of = _pack(self.weight, self.bias), state
        # Eight bits of the input saturate the sums of processors without these instructions; they get seven.
        return torch.ops.quantized.linear_dynamic(x, self.packed, not torch.cpu._is_vnni_supported())

    def _is_faster(self, x: torch.Tensor) -> bool:
        num_entries = self.weight.numel()
        return (
            x.device.type == "cpu"
            and x.dtype == self.weight.dtype == torch.float32
            and not (torch.is_grad_enabled() and (x.requires_grad or self.weight.requires_grad))
            and x.numel() > 0
            and (num_entries >= LARGE_MATRIX or x.numel() * self.out_features >= FEWEST_MULTIPLICATIONS)
        )

    def train(self, mode: bool = True) -> "Int8Linear":
        """As every module's; training forgets the copy."""
        if mode:
            self.packed = self.packed_of = None
        return super().train(mode)

    def __getstate__(self) -> dict:
        """Copies and pickles of the layer make their own copy in int8 of their own matrix."""
        return {**super().__getstate__(), "packed": None, "packed_of": None}


@torch.no_grad()
def _pack(weight: torch.Tensor, bias: torch.Tensor | None):
    """What `quantized.linear_dynamic` multiplies with: W (F, D) as int8, each row scaled to [-127, 127]."""
    scales = (weight.abs().amax(dim=1) / 127).clamp(min=torch.finfo(weight.dtype).tiny)
    integers = (weight / scales[:, None]).round().to(torch.int8)
    with warnings.catch_warnings():
        # PyTorch means to replace tensors of this kind; of what there is, this kernel is the fastest here.
        warnings.filterwarnings("ignore", message=".*quantized tensor creation functions", category=UserWarning)
        matrix = torch._make_per_channel_quantized_tensor(
            integers, scales.double(), torch.zeros(len(scales), dtype=torch.long), 0
        )
    return torch.ops.quantized.linear_prepack(matrix, bias)


def use_int8(model: nn.Module) -> None:
    """Turn every `nn.Linear` of `model` into an `Int8Linear` with the same parameters."""
    for parent in model.modules():
        for name, layer in parent.named_children():
            if type(layer) is nn.Linear:
                with torch.device("meta"):
                    replacement = Int8Linear(layer.in_features, layer.out_features, bias=layer.bias is not None)
                replacement.weight, replacement.bias = layer.weight, layer.bias
                setattr(parent, name, replacement.train(layer.training))
