"""Steps of an engine whose tensors keep their addresses, so that a device can repeat them as a graph.

A step starts about fifteen small kernels per layer, which takes the host longer than a GPU takes to compute them. A
CUDA graph starts them all at once, but works on the memory that it was captured with, in the same shapes. So all that a
step reads and writes is copied to fixed addresses, and there is a graph for each combination of shapes, here a bucket.
The product with the vocabulary stays outside: its logits are the caller's to keep, and shortlists need no graphs of
their own.

No GPU has run this yet. The tests repeat the recorded operations of a step on a CPU, and on a pretended GPU.

Shapes: L sentences still in the search, b beams, D d_model, N slots of keys.
"""

import threading
from collections.abc import Callable, Hashable

import torch
from torch import nn

from .engine_steps_vaswani import EngineSteps

# For one search at a time. newstest2014 in batches of 16,384 tokens meets 188 buckets in 607 steps. Files go from long
# sentences to short ones, so that of fewer graphs each would be dropped before its bucket returns.
MOST_GRAPHS = 512
CAPTURE_LOCK = threading.Lock()  # PyTorch captures one graph at a time

Step = Callable[[], torch.Tensor]


class CudaCapture:
    """Makes CUDA graphs of steps, which share the memory for what they compute on the way."""

    def __init__(self, device: torch.device):
        self.device, self.stream = device, torch.cuda.Stream(device)
        self.begin_again()

    def begin_again(self) -> None:
        """Give later graphs memory of their own: once its graphs are gone, a pool can take no more."""
        self.pool = torch.cuda.graph_pool_handle()

    def __call__(self, step: Step) -> Step:
        """A function that does again what `step` does now, in the same memory, its result included."""
        with CAPTURE_LOCK, torch.cuda.device(self.device):
            present = torch.cuda.current_stream()
            self.stream.wait_stream(present)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.stream(self.stream):
                step()  # libraries choose kernels and allocate, which they may not during a capture
                # The context manager torch.cuda.graph would wait for the device and empty PyTorch's caches each time.
                # Other threads may go on meanwhile, such as one that pins the batches of a training.
                graph.capture_begin(self.pool, capture_error_mode="thread_local")
                try:
                    result = step()
                finally:
                    graph.capture_end()
            present.wait_stream(self.stream)

        def repeat() -> torch.Tensor:
            graph.replay()
            return result

        return repeat


CAPTURES = {"cuda": CudaCapture}  # by type of device


class FixedMemory:
    """Tensors at fixed addresses, for one search at a time, and the captured steps that work on them.

    Args:
        device: where they lie; of a type among `CAPTURES`.
    """

    def __init__(self, device: torch.device):
        self.capture = CAPTURES[device.type](device)
        self.storage: dict[str, torch.Tensor] = {}
        self.captured: dict[Hashable, Step] = {}  # the last used is the last

    def hold(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """A copy of `x` at the address of all that is held as `name`, in place of what was held before."""
        storage = self.storage.get(name)
        if storage is None or storage.numel() < x.numel():
            size = x.numel() if storage is None else max(x.numel(), 2 * storage.numel())
            storage = self.storage[name] = x.new_empty(size)
            self.captured.clear()  # they work on the smaller one
            self.capture.begin_again()
        return storage[: x.numel()].view(x.shape).copy_(x)

    def run(self, bucket: Hashable, step: Step) -> torch.Tensor:
        """What `step` computes of tensors that are held here, whose shapes are those of `bucket`."""
        repeat = self.captured.pop(bucket, None) or self.capture(step)
        self.captured[bucket] = repeat
        if len(self.captured) > MOST_GRAPHS:
            del self.captured[next(iter(self.captured))]
        return repeat()


class CapturedSteps(EngineSteps):
    """The steps of one search, each captured when its bucket comes for the first time in this memory.

    The prompt is read as by `EngineSteps`. A bucket lasts until sentences leave or its slots of keys are full.

    Args:
        memory: that no other search uses meanwhile.
        given: see `EngineSteps`.
    """

    key_bucket = 64  # 16 steps of 4 beams

    def __init__(self, *, memory: FixedMemory, **given):
        super().__init__(**given)
        self.memory, self.bucket = memory, None

    @torch.inference_mode()
    def _take_step(self, tokens: torch.LongTensor, position: torch.Tensor, start: int) -> torch.Tensor:
        hold = self.memory.hold
        tokens, position, mask = hold("tokens", tokens), hold("position", position), hold("mask", self.mask)
        slots = hold("slots", torch.arange(start, start + self.num_beams, device=tokens.device))
        return self.memory.run(self.bucket, lambda: self._run_layers(tokens, position, slots, mask))

    def follow(self, beams: torch.Tensor, staying: torch.Tensor | None) -> None:
        super().follow(beams, staying)
        bucket = (*self.mask.shape, self.layers[0].source.shape[2], self.source_mask is None)
        if staying is not None or bucket != self.bucket:
            self.bucket = bucket
            self._move()

    @torch.inference_mode()
    def _move(self) -> None:
        """Hold what the layers remember, in the shapes of the present bucket."""
        remembered = torch.stack([layer.memory for layer in self.layers])
        missing = self.mask.shape[-1] - remembered.shape[3]  # fewer slots are needed where keys were forgotten
        remembered = self.memory.hold("keys and values", nn.functional.pad(remembered, (0, 0, 0, missing)))
        sources = self.memory.hold("source", torch.stack([layer.source for layer in self.layers]))
        for layer, own, source in zip(self.layers, remembered, sources, strict=True):
            layer.memory = own
            layer._take_source(source)
        if self.source_mask is not None:
            self.source_mask = self.memory.hold("source mask", self.source_mask)
