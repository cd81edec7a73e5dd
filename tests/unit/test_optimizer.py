from dataclasses import replace

import pytest
import torch

from vaswani_transformer.training.optimizer import build_optimizer, inverse_sqrt_lr, inverse_sqrt_schedule
from vaswani_transformer.training.recipes import BASE


@pytest.mark.parametrize(("step", "expected"), [(1, 1.7469e-7), (4000, 6.9877e-4), (100_000, 1.3975e-4)])
def test_rate_of_the_base_model(step, expected):
    assert inverse_sqrt_lr(step, d_model=512) == pytest.approx(expected, rel=1e-4)


def test_both_branches_meet_at_the_end_of_the_warm_up():
    assert inverse_sqrt_lr(4000, d_model=512) == pytest.approx((512 * 4000) ** -0.5, rel=1e-9)
    assert inverse_sqrt_lr(3999, d_model=512) < inverse_sqrt_lr(4000, d_model=512) > inverse_sqrt_lr(4001, d_model=512)


def read_rates(schedule, *, num_updates):
    used = []
    for _ in range(num_updates):
        used.append(schedule.optimizer.param_groups[0]["lr"])
        schedule.optimizer.step()
        schedule.step()
    return used


def build_sgd(lr):
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)


def test_the_optimizer_gets_the_rate_of_each_update_scaled_by_its_lr():
    schedule = inverse_sqrt_schedule(build_sgd(2.5), d_model=16, warmup_steps=3)
    expected = [2.5 * inverse_sqrt_lr(step, d_model=16, warmup_steps=3) for step in range(1, 6)]
    assert read_rates(schedule, num_updates=5) == pytest.approx(expected)


def test_the_warm_up_of_the_schedule_is_the_paper_s_unless_said():
    rates = read_rates(inverse_sqrt_schedule(build_sgd(1.0), d_model=512), num_updates=4001)
    assert max(rates) == rates[3999] == pytest.approx((512 * 4000) ** -0.5, rel=1e-9)


def test_adam_is_that_of_the_recipe():
    model, recipe = torch.nn.Linear(2, 3), replace(BASE, adam_betas=(0.8, 0.7), adam_eps=0.5, lr_scale=2.0)
    (group,) = build_optimizer(model, recipe).param_groups
    assert [group[name] for name in ("lr", "betas", "eps", "weight_decay", "fused")] == [2.0, (0.8, 0.7), 0.5, 0, True]
    assert group["params"] == list(model.parameters())
