"""What the pretended GPU was asked to do, counted by kind and by the line of the project that asked."""

import re
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import torch

PACKAGE = Path(__file__).resolve().parents[2] / "vaswani_transformer"
FRAME = re.compile(rf'File "{re.escape(str(PACKAGE))}/(.*)", line (\d+), in (.*)')
BACKWARD, ELSEWHERE = "backward of ", "elsewhere"


def project_line() -> str:
    """The innermost line of the package that is being run, as `folder/file.py:12 function`.

    PyTorch's backward pass runs in a thread of its own, below no line of the project. In `remembering_lines` it is
    put down to the line whose gradients it computes.
    """
    frame, root = sys._getframe(1), f"{PACKAGE}/"
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(root):
            return f"{code.co_filename.removeprefix(root)}:{frame.f_lineno} {code.co_name}"
        frame = frame.f_back
    node = torch._C._current_autograd_node()
    for entry in reversed(node.metadata.get("traceback_", []) if node else []):
        if found := FRAME.search(entry):
            return "{}{}:{} {}".format(BACKWARD, *found.groups())
    return f"{BACKWARD}{node.name()}" if node else ELSEWHERE


def remembering_lines() -> torch.autograd.set_detect_anomaly:
    """A context: in the block PyTorch remembers for each gradient which line it belongs to, which takes time."""
    return torch.autograd.set_detect_anomaly(True, check_nan=False)


@dataclass
class Counts:
    """Events, each counted under a description of it; `Counter.total()` gives their number.

    Attributes:
        operations: that a GPU would have to start a kernel for, under (name, line).
        captured: operations that a graph started, under (name, line).
        waits: of the host for the device, blocking copies included, under (cause, line).
        copies: from host to device, under (is_blocking, line).
        mixed: operations that CUDA refuses because a tensor of the host is among the others, under (name, line).
        attention: calls, under (has_mask, line).
        shapes: of what matrix products and attention were called with, under (name, shapes).
    """

    operations: Counter = field(default_factory=Counter)
    captured: Counter = field(default_factory=Counter)
    waits: Counter = field(default_factory=Counter)
    copies: Counter = field(default_factory=Counter)
    mixed: Counter = field(default_factory=Counter)
    attention: Counter = field(default_factory=Counter)
    shapes: Counter = field(default_factory=Counter)

    def minus(self, other: "Counts") -> "Counts":
        """The events of this that are beyond those of `other`, such as the steps of a search without its start."""
        return Counts(**{name: events - getattr(other, name) for name, events in vars(self).items()})

    def summary(self) -> dict[str, int]:
        """The numbers that tests hold."""
        return {
            "operations": self.operations.total(),
            "operations in graphs": self.captured.total(),
            "waits": self.waits.total(),
            "copies to the device": self.copies.total(),
            "blocking copies to the device": sum(n for (is_blocking, _), n in self.copies.items() if is_blocking),
            "mixed devices": self.mixed.total(),
            "attention with a mask": sum(n for (has_mask, _), n in self.attention.items() if has_mask),
            "attention without a mask": sum(n for (has_mask, _), n in self.attention.items() if not has_mask),
            "shapes of products": sum(name != "attention" for name, _ in self.shapes),
            "shapes of attention": sum(name == "attention" for name, _ in self.shapes),
        }
