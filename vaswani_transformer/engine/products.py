"""Matrix products of an engine. On CPUs the matrices are packed, see `PackedProducts`.

PyTorch's private names are looked up when an engine is built, never at import. If PyTorch lacks one of them, PyTorch's
public functions multiply.
"""

import operator
import platform
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

ONEDNN_MACHINES = ("x86_64", "AMD64")  # machines on which oneDNN's products were measured
PRIVATE_NAMES = {  # our name -> the name in torch
    "reorder": "ops.mkldnn._reorder_linear_weight",
    "multiply": "ops.mkldnn._linear_pointwise",
    "has_bfloat16": "ops.mkldnn._is_mkldnn_bf16_supported",
    "has_global_hooks": "nn.modules.module._has_any_global_hook",
}

Product = Callable[[Tensor], Tensor]


class Matrix(NamedTuple):
    """The weight and bias of a linear layer."""

    weight: Tensor
    bias: Tensor | None


class Products:
    """Matrix products of an engine, by PyTorch's public functions; subclasses multiply in other ways.

    Args:
        dtype: the dtype of the matrices.
        copies: False to share the model's matrices if they are in `dtype`. They must not change while they are shared.
    """

    def __init__(self, dtype: torch.dtype, *, copies: bool = True):
        self.dtype, self.copies = dtype, copies

    def one(self, layer: nn.Linear | Matrix, *, relu: bool = False) -> Product:
        """Return the function (..., D) -> (..., F) of `layer`, followed by max(0, x) if `relu`."""
        return self.build(self._prepare(layer.weight), self._prepare(layer.bias), relu=relu)

    def several(self, *layers: nn.Linear) -> Callable[[Tensor], Sequence[Tensor]]:
        """Return a function that gives the outputs of all `layers` for one input. All or none of them have a bias."""
        biases = [layer.bias for layer in layers]
        bias = None if biases[0] is None else torch.cat(biases)
        product = self.one(Matrix(torch.cat([layer.weight for layer in layers]), bias))
        sizes = [len(layer.weight) for layer in layers]
        return lambda x: product(x).split(sizes, dim=-1)

    def adding(self, layer: nn.Linear) -> Callable[[Tensor, Tensor], Tensor]:
        """Return a function of x (rows, D) and residual (rows, F): the output of `layer` for x, plus the residual."""
        if layer.bias is None and type(self) is Products:
            weight = self._prepare(layer.weight).t()
            return lambda x, residual: torch.addmm(residual, x, weight)
        product = self.one(layer)
        return lambda x, residual: residual + product(x)

    def build(self, weight: Tensor, bias: Tensor | None, *, relu: bool = False) -> Product:
        """Return the function x -> x `weight`^T + `bias`, followed by max(0, x) if `relu`; weight (F, D), bias (F,)."""
        if relu:
            return lambda x: nn.functional.linear(x, weight, bias).relu_()
        return lambda x: nn.functional.linear(x, weight, bias)

    def keep(self, parameter: Tensor | None) -> Tensor | None:
        """Return `parameter` in `self.dtype`. It is a copy, unless `copies` is False and the dtypes are equal."""
        return None if parameter is None else parameter.detach().to(self.dtype, copy=self.copies)

    _prepare = keep  # gives a matrix or a bias the form that `build` expects


class PackedProducts(Products):
    """Matrix products in float32 or bfloat16. A packed matrix is stored in the order in which oneDNN reads it.

    A search multiplies few rows by the same matrices again and again. On x86-64, PyTorch multiplies float32 with MKL,
    which packs the matrix again for every product. Microseconds for the product of some rows with a matrix of
    512 x 10,000, on an AMD processor with two threads:

        dtype       rows    not packed    packed
        float32        4         1,289       165
        float32      256        14,689     6,018
        bfloat16       4           218        90
        bfloat16     256         4,222     3,284
    """

    @staticmethod
    def supports(dtype: torch.dtype) -> bool:
        """Return True if oneDNN multiplies in `dtype` on this machine, and PyTorch has the private names for it."""
        mkldnn, has_bfloat16 = torch.backends.mkldnn, find_private("has_bfloat16")
        is_ready = mkldnn.is_available() and mkldnn.enabled and platform.machine() in ONEDNN_MACHINES
        if not is_ready or find_private("reorder") is None or find_private("multiply") is None:
            return False
        return dtype == torch.float32 or (dtype == torch.bfloat16 and has_bfloat16 is not None and has_bfloat16())

    def build(self, weight: Tensor, bias: Tensor | None, *, relu: bool = False) -> Product:
        multiply = find_private("multiply").default
        packed = find_private("reorder")(weight.contiguous())
        activation = "relu" if relu else "none"
        return lambda x: multiply(x, packed, bias, activation, [], "")

    def _prepare(self, parameter: Tensor | None) -> Tensor | None:
        is_matrix = parameter is not None and parameter.dim() == 2
        # Packing copies a matrix, so only a bias needs a copy here.
        return parameter.detach().to(self.dtype) if is_matrix else self.keep(parameter)


def build_products(dtype: torch.dtype | str, device: torch.device, *, copies: bool = True) -> Products:
    """Return the fastest products on `device` in `dtype`, a floating-point dtype or its name.

    Packing saves time even if an engine translates only one sentence. With 4 beams and two threads, packing cut the
    time of the base model to between a half and two thirds for a sentence of 12 to 25 words. A sentence of 5 words took
    as long with packing as without.

    Raises:
        ValueError: if `dtype` is not floating-point.
    """
    given, dtype = dtype, getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ValueError(
            f'the dtype of an engine must be floating-point, such as "bfloat16"; got {given!r}. For int8: '
            f"vaswani export --format ctranslate2 --quantization int8."
        )
    kind = PackedProducts if device.type == "cpu" and PackedProducts.supports(dtype) else Products
    return kind(dtype, copies=copies)


def find_private(name: str) -> Callable | None:
    """Return one of `PRIVATE_NAMES`, or `None` if this PyTorch does not have it."""
    try:
        return operator.attrgetter(PRIVATE_NAMES[name])(torch)
    except AttributeError:
        return None
