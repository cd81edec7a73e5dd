"""Matrix products of a search on a CPU, with matrices kept in the order in memory that oneDNN's kernels read.

PyTorch multiplies float32 with MKL on x86-64, which lays the matrix out anew for every product. A search multiplies
a few rows by the same matrices again and again: on an AMD processor, two threads, 512 x 10,000 by 4 rows took 1,289
microseconds so and 165 with the matrix packed, by 256 rows 14,689 and 6,018; in bfloat16 218 and 90, 4,222 and 3,284.
"""

from collections.abc import Callable, Sequence
from weakref import WeakKeyDictionary

import torch
from torch import nn

from .layers_vaswani import has_onednn, is_changed

DTYPES = (torch.float32, torch.bfloat16)  # of matrices that were packed and timed


class PackedMatrices:
    """The matrices of `layers`, one below the other, as oneDNN reads them; a copy, of their size."""

    def __init__(self, layers: Sequence[nn.Linear]):
        self.state, self.sums = _state_of(layers), _sum(layers)
        weights = [layer.weight for layer in layers]
        whole = weights[0] if len(weights) == 1 else torch.cat(weights)
        self.matrix = torch.ops.mkldnn._reorder_linear_weight(whole.contiguous())

    def is_stale(self, layers: Sequence[nn.Linear]) -> bool:
        """Whether `layers` have other matrices, or theirs were written to, be it through `weight.data`."""
        return self.state != _state_of(layers) or not all(map(torch.equal, self.sums, _sum(layers)))


# By the first layer of each product: so copies live as long as the layers, and are neither saved nor copied with them.
_packed: WeakKeyDictionary[nn.Linear, PackedMatrices] = WeakKeyDictionary()


def can_pack(layers: Sequence[nn.Module]) -> bool:
    """Whether `layers` are linear and alike, nobody has changed what they compute, and oneDNN takes their matrices."""
    return has_onednn() and all(
        type(layer) is nn.Linear
        and not is_changed(layer)
        and type(layer.weight) is nn.Parameter
        and layer.weight.device.type == "cpu"
        and layer.weight.layout == torch.strided
        and layer.weight.dtype in DTYPES
        and (layer.weight.dtype != torch.bfloat16 or torch.ops.mkldnn._is_mkldnn_bf16_supported())
        and not torch.is_autocast_enabled("cpu")
        and layer.weight.dtype == layers[0].weight.dtype
        and (layer.bias is None) == (layers[0].bias is None)
        for layer in layers
    )


@torch.inference_mode(False)  # copies outlive the search
@torch.no_grad()
def pack(layers: Sequence[nn.Linear], *, relu: bool = False) -> Callable[[torch.Tensor], torch.Tensor]:
    """The product (rows, D) -> (rows, F) with the matrices of `layers`, F the rows of all of them.

    It gives no gradients, and holds until a matrix changes: ask for it anew at the start of each search.

    Args:
        layers: that `can_pack`, all with a bias or all without.
        relu: put max(0, x) behind the product.
    """
    packed = _packed.get(layers[0])
    if packed is None or packed.is_stale(layers):
        _packed[layers[0]] = packed = PackedMatrices(layers)
    biases = [layer.bias for layer in layers]
    bias = None if biases[0] is None else torch.cat(biases)
    matrix, activation = packed.matrix, "relu" if relu else "none"
    return lambda x: torch.ops.mkldnn._linear_pointwise.default(x, matrix, bias, activation, [], "")


def unpack(model: nn.Module) -> None:
    """Forget the copies of the matrices of `model`."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            _packed.pop(module, None)


def _state_of(layers: Sequence[nn.Linear]) -> list[tuple]:
    """What changes when a weight becomes another tensor or is written to, but not through `weight.data`."""
    weights = [layer.weight for layer in layers]
    return [(weight.data_ptr(), weight.dtype, None if weight.is_inference() else weight._version) for weight in weights]


def _sum(layers: Sequence[nn.Linear]) -> list[torch.Tensor]:
    """Of rows and of columns: what tells that somebody has written through `weight.data`, as merging an adapter does.

    Takes 0.7 ms for the 21 MB of a small model, of whose search for one sentence that is a fortieth.
    """
    return [layer.weight.sum(dim=dim, dtype=torch.float32) for layer in layers for dim in (0, 1)]
