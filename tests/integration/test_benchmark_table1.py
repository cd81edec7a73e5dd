"""The benchmark of table 1 runs from end to end, and its exponents are those of what it measured."""

import json
import math

import benchmark_table1 as table1
import pytest
import torch


@pytest.fixture
def sizes():
    return table1.Sizes(width=8, heads=2, window=4, kernel_size=3)


def test_the_benchmark_prints_its_growth_beside_the_formulas_and_draws_it(tmp_path, monkeypatch, capsys):
    # A process for each memory would take longer than all the rest.
    monkeypatch.setattr(table1, "measure_in_child", lambda work, name, length, sizes: float(length**2))
    output, plot = tmp_path / "result.json", tmp_path / "table1.svg"
    options = {"width": 8, "heads": 2, "window": 4, "repeats": 1, "threads": 1, "plot": plot, "output": output}
    arguments = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    assert table1.main(["--lengths", "16", "32", "64", *arguments]) == 0
    rows = json.loads(output.read_text(encoding="utf-8"))["rows"]
    assert [row["layer"] for row in rows] == list(table1.LAYERS)
    for row in rows:
        assert row["time_exponent"] == pytest.approx(math.log2(row["seconds"][2] / row["seconds"][1]))
        assert row["memory_exponent"] == pytest.approx(2)
    printed = capsys.readouterr().out
    assert "self-attention, restricted              O(r n d)                   O(1)             O(n / r)" in printed
    assert "n^2.00" in printed
    assert "restricted: n^" in plot.read_text(encoding="utf-8")


def test_the_memory_of_a_layer_is_measured_in_a_process_of_its_own(sizes):
    # Six matrices of weights a head of 4 bytes, or more: 2 x 6 x 2,000^2 x 4.
    assert table1.measure_in_child(table1.measure_memory, "self-attention", 2_000, sizes) > 60


def test_every_layer_keeps_the_width_and_gives_gradients_of_its_input(sizes):
    for layer in table1.LAYERS.values():
        x = torch.randn(1, 9, sizes.width, requires_grad=True)
        y = layer.build(sizes)(x)
        assert y.shape == x.shape
        y.square().sum().backward()
        assert (x.grad != 0).all()


def test_the_restricted_layer_sees_its_window_alone(sizes):
    forward, x = table1.LAYERS["self-attention, restricted"].build(sizes), torch.randn(1, 200, sizes.width)
    x.requires_grad_()
    forward(x)[0, 100].sum().backward()
    assert x.grad[0].any(dim=-1).nonzero()[:, 0].tolist() == [98, 99, 100, 101]


def test_both_full_attentions_are_one_layer(sizes):
    x, outputs = torch.randn(1, 30, sizes.width), []
    for name in ("self-attention", "self-attention, fused"):
        torch.manual_seed(0)
        outputs.append(table1.LAYERS[name].build(sizes)(x))
    torch.testing.assert_close(*outputs)


@pytest.mark.parametrize(
    ("values", "expected"),
    [([9.0, 1.0, 4.0], 2.0), ([1.0, 3.0, 6.0], 1.0), ([1.0, 0.0, 3.0], math.nan)],  # the last was too short to measure
)
def test_the_exponent_is_the_slope_between_the_two_longest(values, expected):
    assert table1.growth([1, 2, 4], values) == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *((f"--lengths {n}", f"must be two or more that ascend, got {n}") for n in ("64", "64 32", "32 32", "0 5")),
        ("--plot table1.pdf", "--plot draws .svg or .png, got table1.pdf"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_measured(capsys, arguments, message):
    with pytest.raises(SystemExit):
        table1.main(arguments.split())
    assert message in capsys.readouterr().err
