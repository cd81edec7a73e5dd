"""When the host looks at what a device has computed, and what it then sees."""

import pytest
import torch

from vaswani_transformer.model.leaving_vaswani import LateLook

NOT_YET = -1


class LateDevice:
    """A device whose copies to the host hold nothing before the host has waited for an event recorded behind them."""

    def __init__(self):
        self.copies, self.num_started, self.waits = [], 0, []

    def start(self, step: int) -> "LateTensor":
        """What the device computes in a step, which leaves its number."""
        self.num_started += 1
        return LateTensor(self, torch.tensor([step, 10 * step]))

    def current_stream(self, device: "LateDevice") -> "LateDevice":
        assert device is self  # another device's stream has nothing to wait for
        return self

    def record_event(self) -> "LateEvent":
        return LateEvent(self)


class LateTensor:
    def __init__(self, device: LateDevice, values: torch.Tensor):
        self.device, self.values = device, values

    def to(self, place: str, *, non_blocking: bool) -> torch.Tensor:
        assert (place, non_blocking) == ("cpu", True)
        copy = torch.full_like(self.values, NOT_YET)
        self.device.copies.append((copy, self.values))
        return copy


class LateEvent:
    def __init__(self, device: LateDevice):
        self.device = device
        self.num_copies, self.step = len(device.copies), device.num_started

    def synchronize(self) -> None:
        """All that was asked for before the event was recorded is there; the wait is short if more was asked since."""
        self.device.waits.append(self.device.num_started - self.step)
        for copy, values in self.device.copies[: self.num_copies]:
            copy.copy_(values)


def test_on_a_device_the_host_sees_every_fourth_step_one_step_later(monkeypatch):
    device = LateDevice()
    monkeypatch.setattr(torch.accelerator, "current_stream", device.current_stream)
    look = LateLook(is_late=True)
    seen = {step: look.look(device.start(step)) for step in range(1, 15)}
    assert {step: values for step, values in seen.items() if values is not None} == {
        5: [4, 40],
        9: [8, 80],
        13: [12, 120],
    }
    assert device.waits == [1, 1, 1]  # the device has a step to compute while the host waits
    assert len(device.copies) == 3


@pytest.mark.parametrize("num_steps", [1, 6])
def test_where_looking_costs_nothing_each_step_is_seen_at_once(num_steps):
    look = LateLook(is_late=False)
    assert [look.look(torch.tensor([step > 2])) for step in range(num_steps)] == [[s > 2] for s in range(num_steps)]
