"""Matrix products of a search on a CPU, with matrices kept in the order in memory that oneDNN's kernels read.

PyTorch multiplies float32 with MKL, which lays the matrix out anew for every product. A search multiplies a few rows by
the same matrices again and again: on an AMD processor, two threads, 512 x 10,000 by 4 rows took 1,289 microseconds so
and 165 with the matrix packed, by 256 rows 14,689 and 6,018; in bfloat16 218 and 90, 4,222 and 3,284.
"""

from collections.abc import Callable, Sequence
from weakref import WeakKeyDictionary

import torch
from torch import nn

from .layers_vaswani import HAS_ONEDNN, is_changed

DTYPES = (torch.float32, torch.bfloat16)


class PackedMatrices:
    """The matrices of `layers`, one below the other, as oneDNN reads them; a copy, of their size."""

    def __init__(self, layers: Sequence[nn.Linear]):
        self.pointers, self.sums = _points_at(layers), _sum_rows(layers)
        self.matrix = torch.ops.mkldnn._reorder_linear_weight(torch.cat([layer.weight for layer in layers]))

    def is_stale(self, layers: Sequence[nn.Linear]) -> bool:
        """Whether `layers` have other matrices, or theirs were written to, be it through `weight.data`."""
        return self.pointers != _points_at(layers) or any(
            not torch.equal(own, others) for own, others in zip(self.sums, _sum_rows(layers), strict=True)
        )


# Of the first layer of each product: so copies live as long as the layers, and are neither saved nor copied with them.
_packed: WeakKeyDictionary[nn.Linear, PackedMatrices] = WeakKeyDictionary()


def can_pack(layers: Sequence[nn.Module]) -> bool:
    """Whether `layers` are linear, nobody has changed what they compute, and oneDNN multiplies by their matrices."""
    return HAS_ONEDNN and all(
        type(layer) is nn.Linear
        and not is_changed(layer)
        and type(layer.weight) is nn.Parameter
        and layer.weight.device.type == "cpu"
        and layer.weight.layout == torch.strided
        and layer.weight.dtype in DTYPES
        and (layer.weight.dtype != torch.bfloat16 or torch.ops.mkldnn._is_mkldnn_bf16_supported())
        and not torch.is_autocast_enabled("cpu")
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
    matrix, activation, multiply = packed.matrix, "relu" if relu else "none", torch.ops.mkldnn._linear_pointwise.default
    return lambda x: multiply(x, matrix, bias, activation, [], "")


def _points_at(layers: Sequence[nn.Linear]) -> list[tuple]:
    return [(layer.weight.data_ptr(), layer.weight.dtype) for layer in layers]


def _sum_rows(layers: Sequence[nn.Linear]) -> list[torch.Tensor]:
    """Takes a twentieth of the time of packing. Not `_version`, which writing through `weight.data` leaves as it is."""
    return [layer.weight.sum(dim=1, dtype=torch.float32) for layer in layers]
