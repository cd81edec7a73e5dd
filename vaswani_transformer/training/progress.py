"""How far a run has come, and its sums over the updates between two lines of the log."""

import contextlib
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import torch
from accelerate import Accelerator

from ..data.batching import Update


def perplexity(nll: float) -> float:
    """Return exp(`nll`), in nats per token; inf where a float cannot hold it, as when a run diverges."""
    return math.exp(nll) if nll < 700 else nll * math.inf


@dataclass
class Progress:
    """How far a run has come."""

    update: int = 0
    epoch: int = 0
    updates_of_epoch: int = 0  # done of the present epoch
    seconds: float = 0.0  # of training, over all sittings
    best_dev_loss: float = math.inf
    evaluations_without_gain: int = 0

    def count(self, update: Update) -> None:
        """Count `update` as done."""
        self.update += 1
        self.updates_of_epoch += 1
        if update.is_last_of_epoch:
            self.epoch, self.updates_of_epoch = self.epoch + 1, 0

    def note_evaluation(self, dev_loss: float) -> None:
        """Count an evaluation of the development set."""
        self.evaluations_without_gain += 1
        if dev_loss < self.best_dev_loss:
            self.best_dev_loss, self.evaluations_without_gain = dev_loss, 0

    def state_dict(self) -> dict:
        return asdict(self)

    def load_state_dict(self, state: dict) -> None:
        self.__init__(**state)


class Tally:
    """Sums since the last line, and skipped updates of the whole run.

    They stay on the device, because reading them would synchronise host and device.
    """

    def __init__(self, accelerator: Accelerator):
        self.accelerator = accelerator
        device = accelerator.device
        self._losses = torch.zeros(2, device=device)  # loss and -log P over the target tokens of this process, in nats
        # Target tokens of all processes in updates that were not skipped; updates skipped because a gradient was not
        # finite, in the whole run and in a row up to now.
        self._counts = torch.zeros(3, device=device)
        self.start_line()

    def start_line(self) -> None:
        """Begin the next line of the log."""
        self._losses.zero_()
        self._counts[0] = 0
        self.updates = 0
        self._started = time.perf_counter()

    def add(self, losses: torch.Tensor, is_finite: torch.Tensor, update: Update) -> None:
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
        """Leave out the time of the block, which is not spent on training."""
        started = time.perf_counter()
        yield
        self._started += time.perf_counter() - started

    @property
    def seconds(self) -> float:
        """Time of training since the last line."""
        return time.perf_counter() - self._started

    def count_skipped_in_a_row(self) -> int:
        """Return the number of updates skipped in a row up to now; synchronise with the device."""
        return int(self._counts[2])

    def compute_means(self) -> dict[str, float | int | None]:
        """Return loss, perplexity, tokens and speed since the last line; all processes must call it together."""
        loss, nll = self.accelerator.reduce(self._losses, "sum").tolist()
        target_tokens, skipped, _ = self._counts.tolist()
        return {
            # None if all updates since the last line were skipped.
            "loss": loss / target_tokens if target_tokens else None,
            "perplexity": perplexity(nll / target_tokens) if target_tokens else None,
            "target_tokens": int(target_tokens),
            "target_tokens_per_second": target_tokens / self.seconds,
            "skipped": int(skipped),
        }

    def state_dict(self) -> dict:
        """Return the sums; all processes must call it together."""
        losses = self.accelerator.reduce(self._losses, "sum")
        return {"losses": losses, "counts": self._counts, "updates": self.updates, "seconds": self.seconds}

    def load_state_dict(self, state: dict) -> None:
        if self.accelerator.is_main_process:  # the saved sum is that of all processes: only one continues it
            self._losses.copy_(state["losses"])
        self._counts.copy_(state["counts"])
        self.updates, self._started = state["updates"], time.perf_counter() - state["seconds"]
