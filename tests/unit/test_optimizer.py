import pytest
import torch
from vaswani_transformer.training.schedule import inverse_sqrt_lr, inverse_sqrt_schedule


@pytest.mark.parametrize(("step", "expected"), [(1, 1.7469e-7), (4000, 6.9877e-4), (100_000, 1.3975e-4)])
def test_rate_of_the_base_model(step, expected):
    assert inverse_sqrt_lr(step, d_model=512) == pytest.approx(expected, rel=1e-4)


def test_both_branches_meet_at_the_end_of_the_warm_up():
    assert inverse_sqrt_lr(4000, d_model=512) == pytest.approx((512 * 4000) ** -0.5)
    assert inverse_sqrt_lr(3999, d_model=512) < inverse_sqrt_lr(4000, d_model=512) > inverse_sqrt_lr(4001, d_model=512)


def test_step_zero_is_refused():
    with pytest.raises(ValueError, match="step counts updates from 1, got 0"):
        inverse_sqrt_lr(0, d_model=512)


def test_the_optimizer_gets_the_rate_of_each_update_scaled_by_its_lr():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2.5)
    schedule = inverse_sqrt_schedule(optimizer, d_model=16, warmup_steps=3)
    used = []
    for _ in range(5):
        used.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert used == pytest.approx([2.5 * inverse_sqrt_lr(step, d_model=16, warmup_steps=3) for step in range(1, 6)])
