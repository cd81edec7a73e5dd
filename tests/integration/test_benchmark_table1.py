"""The benchmark of table 1 runs from end to end, and prints the exponents with which its measurements grow."""

import math
import re

import benchmark_table1 as table1


def test_the_benchmark_prints_growth_beside_the_formulas(monkeypatch, capsys):
    # Measuring memory in separate processes would take longer than the rest of this test.
    monkeypatch.setattr(table1, "measure_in_child", lambda work, name, length, sizes: float(length**2))
    arguments = "--lengths 16 32 --width 8 --heads 2 --window 4 --repeats 1"
    table1.main(arguments.split())
    printed = capsys.readouterr().out
    assert re.search(r"self-attention, restricted +O\(r n d\) +O\(1\) +O\(n / r\)", printed)
    # The memory of each layer grows so, and by chance some times may, too.
    assert printed.count("n^2.00") >= len(table1.LAYERS)
    assert table1.growth([1, 2, 4], [9.0, 1.0, 4.0]) == 2
    assert math.isnan(table1.growth([1, 2], [0.0, 3.0]))  # 0 means that nothing was measured
