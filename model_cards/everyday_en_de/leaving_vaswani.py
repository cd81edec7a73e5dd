"""When the host learns which sentences of a search are done, and which then go on.

A device computes behind the host, and reading a result makes the host wait for all queued work. So on a device the host
reads every few steps, and reads the flags of the step before. Until then sentences that are done go on; their
hypotheses score -inf, which changes nothing that was found.
"""

from collections.abc import Sequence

import torch

STEPS_BETWEEN_LOOKS = 4


class LateLook:
    """What a tensor of a device held a step ago, every `STEPS_BETWEEN_LOOKS` steps.

    Args:
        is_late: else each look is at once, which on a CPU costs nothing.
    """

    def __init__(self, *, is_late: bool):
        self.is_late = is_late
        self.num_steps = 0
        self.copy = self.copied = None

    def look(self, x: torch.Tensor) -> list | None:
        """To be called in each step, with `x` as it is: its values, maybe of the step before, or `None`."""
        if not self.is_late:
            return x.tolist()
        self.num_steps += 1
        if self.num_steps % STEPS_BETWEEN_LOOKS == 0:
            self.copy = x.to("cpu", non_blocking=True)  # in pinned memory
            self.copied = torch.accelerator.current_stream(x.device).record_event()  # not of the current device
        elif self.copy is not None:
            self.copied.synchronize()  # the device has the present step to compute meanwhile
            values, self.copy = self.copy.tolist(), None
            return values
        return None


def find_staying(done: Sequence[bool]) -> list[int] | None:
    """Places of the sentences to go on with, the last ones in the gaps, so that few move; `None` if all shall stay.

    Some that are done stay too, so that batches have few sizes: for each new one oneDNN makes kernels, which took
    8 % of a search of 64 sentences.
    """
    count = _round_up(len(done) - sum(done))
    if count >= len(done):
        return None
    movers = (place for place in range(count, len(done)) if not done[place])
    return [next(movers, place) if done[place] else place for place in range(count)]


def as_index(places: list[int], device: torch.device) -> torch.LongTensor:
    """`places` on `device`, for which the host does not wait."""
    index = torch.tensor(places)
    return index if device.type == "cpu" else index.pin_memory().to(device, non_blocking=True)


def _round_up(count: int) -> int:
    """To at most four sizes between two powers of 2: 1 to 8, 10, 12, 14, 16, 20, 24, 28, 32, 40 and so on."""
    unit = 2 ** max(0, (count - 1).bit_length() - 3)
    return -(-count // unit) * unit
