"""Adam and its learning rate (section 5.3)."""

import pytest
import torch

from vaswani_transformer.training.optimizer import build_optimizer, inverse_sqrt_lr, inverse_sqrt_schedule
from vaswani_transformer.training.recipes import Recipe


@pytest.mark.parametrize(("step", "expected"), [(1, 1.7469e-7), (4000, 6.9877e-4), (100_000, 1.3975e-4)])
def test_the_learning_rate_of_the_base_model_follows_equation_3(step, expected):
    assert inverse_sqrt_lr(step, d_model=512) == pytest.approx(expected, rel=1e-4)


def test_the_lr_of_an_update_is_the_initial_lr_of_the_optimizer_times_inverse_sqrt_lr():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2.5)
    lrs = []
    schedule = inverse_sqrt_schedule(optimizer, d_model=512)
    for _ in range(3):
        lrs.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert lrs == pytest.approx([2.5 * inverse_sqrt_lr(step, d_model=512) for step in (1, 2, 3)], rel=1e-9)


def test_adam_has_the_settings_of_the_recipe():
    model = torch.nn.Linear(2, 3)
    recipe = Recipe(adam_betas=(0.8, 0.7), adam_eps=0.5, lr_scale=2.0, weight_decay=0.25)
    (group,) = build_optimizer(model, recipe).param_groups
    expected = {"lr": 2.0, "betas": (0.8, 0.7), "eps": 0.5, "weight_decay": 0.25, "fused": True}
    assert {name: group[name] for name in expected} == expected
    assert group["params"] == list(model.parameters())
