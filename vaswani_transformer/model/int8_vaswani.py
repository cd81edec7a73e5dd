"""Matrix products in integers of 8 bits, for models that translate on a CPU."""

import threading
import warnings
from collections.abc import Sequence

import torch
from torch import nn

# The matrix instructions of newer Intel processors take a third of the time from 64 rows on, but longer to set up.
HAS_TILES = torch.cpu._is_amx_tile_supported() and "onednn" in torch.backends.quantized.supported_engines
# Of a product: with fewer, finding the scale of the input takes longer than is won. Without tiles measured on an AMD
# processor with VNNI.
FEWEST_MULTIPLICATIONS = 2**23 if HAS_TILES else 2**18
LARGE_MATRIX = 2**20  # entries; read as float32 it takes longer than everything else, however few the rows

ENGINE_LOCK = threading.Lock()


class Int8Linear(nn.Linear):
    """A linear layer that multiplies in int8 on a CPU where that is faster; anywhere else it is `nn.Linear`.

    Each row of the matrix has a scale of its own, the input one for all of it, found anew at each call: results differ
    from float32 by about 1 %, and a little with what shares the batch. The matrix itself stays what it was, so it is
    saved, tied and trained as ever; its copy in int8, a quarter of its size, is made at the first product and again
    when the matrix has changed. Changes of `weight.data` in place are not noticed: call `train()` after them.
    """

    packed = None  # the copy, alone and above those of other layers, in the order in memory that the kernel reads
    packed_jointly = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., D) -> (..., F)."""
        if not _is_faster(x, [self]):
            return super().forward(x)
        packed = self.packed
        if packed is None or packed.is_stale([self]):
            self.packed = packed = Int8Copy([self])
        return packed.multiply(x)

    def train(self, mode: bool = True) -> "Int8Linear":
        """As every module's; training forgets the copies."""
        if mode:
            self.packed = self.packed_jointly = None
        return super().train(mode)

    def __getstate__(self) -> dict:
        """Copies and pickles of the layer make their own copies in int8 of their own matrix."""
        return {**super().__getstate__(), "packed": None, "packed_jointly": None}


def project_jointly(x: torch.Tensor, layers: Sequence[Int8Linear]) -> Sequence[torch.Tensor]:
    """`x` (..., D) through each of `layers`, by one product where int8 is faster."""
    if not _is_faster(x, layers):
        return [layer(x) for layer in layers]
    packed = layers[0].packed_jointly
    if packed is None or packed.is_stale(layers):
        layers[0].packed_jointly = packed = Int8Copy(layers)
    return packed.multiply(x).split([layer.out_features for layer in layers], dim=-1)


class Int8Copy:
    """The matrices of `layers`, all with a bias or all without, one below the other in int8."""

    @torch.no_grad()
    def __init__(self, layers: Sequence[nn.Linear]):
        self.state = _state_of(layers)
        biases = [layer.bias for layer in layers]
        self.matrix = _pack(
            torch.cat([layer.weight for layer in layers]), None if biases[0] is None else torch.cat(biases)
        )
        # Eight bits of the input saturate the sums of processors without these instructions; they get seven.
        self.reduce_range = not torch.cpu._is_vnni_supported()

    def is_stale(self, layers: Sequence[nn.Linear]) -> bool:
        """Whether `layers` have changed since, or are others."""
        return self.state != _state_of(layers)

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        """(..., D) -> (..., F), F the rows of all matrices."""
        return torch.ops.quantized.linear_dynamic(x, self.matrix, self.reduce_range)


def _is_faster(x: torch.Tensor, layers: Sequence[nn.Linear]) -> bool:
    """Whether int8 multiplies `x` by the matrices of `layers` sooner than float32, and nobody needs gradients."""
    num_entries = sum(layer.weight.numel() for layer in layers)
    return (
        x.device.type == "cpu"
        and all(x.dtype == layer.weight.dtype == torch.float32 for layer in layers)
        and not (torch.is_grad_enabled() and (x.requires_grad or any(layer.weight.requires_grad for layer in layers)))
        and x.numel() > 0
        and (num_entries >= LARGE_MATRIX or x.numel() // x.shape[-1] * num_entries >= FEWEST_MULTIPLICATIONS)
    )


def _state_of(layers: Sequence[nn.Linear]) -> list[tuple]:
    """What changes when a weight or bias does."""
    parameters = [p for layer in layers for p in (layer.weight, layer.bias) if p is not None]
    return [(p.data_ptr(), None if p.is_inference() else p._version) for p in parameters]


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
    if not HAS_TILES:  # which only oneDNN uses
        return torch.ops.quantized.linear_prepack(matrix, bias)
    with ENGINE_LOCK:  # the engine is one for all threads
        engine = torch.backends.quantized.engine
        torch.backends.quantized.engine = "onednn"
        try:
            return torch.ops.quantized.linear_prepack(matrix, bias)
        finally:
            torch.backends.quantized.engine = engine


def use_int8(model: nn.Module) -> None:
    """Turn every `nn.Linear` of `model` into an `Int8Linear` with the same parameters."""
    for parent in model.modules():
        for name, layer in parent.named_children():
            if type(layer) is nn.Linear:
                with torch.device("meta"):
                    replacement = Int8Linear(layer.in_features, layer.out_features, bias=layer.bias is not None)
                replacement.weight, replacement.bias = layer.weight, layer.bias
                setattr(parent, name, replacement.train(layer.training))
