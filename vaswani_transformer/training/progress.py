"""How far a run has come, and sums over the updates since the last line of its log."""

import contextlib
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import torch
from accelerate import Accelerator
from torch import Tensor

from ..data.batching import Update


def perplexity(nll: float) -> float:
    """Return exp(`nll`), or infinity if a float cannot hold it. `nll` is a mean -log P in nats per token."""
    return math.exp(nll) if nll < 700 else nll * math.inf


@dataclass
class Progress:
    """How far a run has come: its updates, its time and its evaluations."""

    update: int = 0
    epoch: int = 0
    updates_of_epoch: int = 0  # updates done in the present epoch
    seconds: float = 0.0  # time of training with evaluations and checkpoints, summed over all starts of the run
    best_dev_loss: float = math.inf
    evaluations_without_gain: int = 0  # number of evaluations since the one with the lowest loss

    def count(self, update: Update) -> None:
        """Count `update` as done."""
        self.update += 1
        self.updates_of_epoch += 1
        if update.is_last_of_epoch:
            self.epoch += 1
            self.updates_of_epoch = 0

    def note_evaluation(self, dev_loss: float) -> None:
        """Record the loss of an evaluation of the development set."""
        self.evaluations_without_gain += 1
        if dev_loss < self.best_dev_loss:
            self.best_dev_loss = dev_loss
            self.evaluations_without_gain = 0

    def state_dict(self) -> dict:
        return asdict(self)

    def load_state_dict(self, state: dict) -> None:
        self.__init__(**state)


class Tally:
    """Sums since the last line of the log, and the number of skipped updates of the whole run.

    The sums stay on the device, because reading them would synchronise host and device.
    """

    def __init__(self, accelerator: Accelerator):
        self.accelerator = accelerator
        device = accelerator.device
        # Loss and -log P, summed over the target tokens of this process, in nats.
        self._losses = torch.zeros(2, device=device)
        # Three counts: the target tokens of all processes in updates that were not skipped; the skipped updates of the
        # whole run; the skipped updates in a row, up to the latest update. An update is skipped if its gradient is not
        # finite.
        self._counts = torch.zeros(3, device=device)
        self.start_line()

    def start_line(self) -> None:
        """Begin the next line of the log."""
        self._losses.zero_()
        self._counts[0] = 0
        self.updates = 0
        self._started = time.perf_counter()

    def add(self, losses: Tensor, is_finite: Tensor, update: Update) -> None:
        """Count one update.

        Args:
            losses: (2,), loss and -log P summed over the target tokens of this process.
            is_finite: scalar, false if the update was skipped.
        """
        self._losses += torch.where(is_finite, losses, 0)
        self._counts[0] += is_finite * update.target_tokens
        self._counts[1] += ~is_finite
        self._counts[2] = (self._counts[2] + 1) * ~is_finite
        self.updates += 1

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Exclude the time of the block from `seconds`."""
        started = time.perf_counter()
        yield
        self._started += time.perf_counter() - started

    @property
    def seconds(self) -> float:
        """The time of training since the last line of the log, without pauses."""
        return time.perf_counter() - self._started

    def count_skipped_in_a_row(self) -> int:
        """Return how many updates in a row, up to the latest one, were skipped. Host and device synchronise."""
        return int(self._counts[2])

    def compute_means(self) -> dict[str, float | int | None]:
        """Return loss, perplexity, tokens and speed since the last line of the log.

        Skipped updates are counted since the start of the run. All processes must call this method together.
        """
        loss, nll = self.accelerator.reduce(self._losses, "sum").tolist()
        target_tokens, skipped, _ = self._counts.tolist()
        return {
            # Loss and perplexity are None if all updates since the last line were skipped.
            "loss": loss / target_tokens if target_tokens else None,
            "perplexity": perplexity(nll / target_tokens) if target_tokens else None,
            "target_tokens": int(target_tokens),
            "target_tokens_per_second": target_tokens / self.seconds,
            "skipped": int(skipped),
        }

    def state_dict(self) -> dict:
        """Return the sums. All processes must call this method together."""
        losses = self.accelerator.reduce(self._losses, "sum")
        return {"losses": losses, "counts": self._counts, "updates": self.updates, "seconds": self.seconds}

    def load_state_dict(self, state: dict) -> None:
        if self.accelerator.is_main_process:  # The saved losses are sums over all processes.
            self._losses.copy_(state["losses"])
        self._counts.copy_(state["counts"])
        self.updates = state["updates"]
        self._started = time.perf_counter() - state["seconds"]
