import json
import math
import sys

import pytest

from vaswani_transformer import cli
from vaswani_transformer.training import curves
from vaswani_transformer.training.curves import draw_curves

TITLES = ("loss, nats per token", "perplexity per sub-word", "BLEU of the", "learning rate", "target tokens per second")


def write_log(folder, *, with_bleu):
    folder.mkdir(parents=True)
    lines = [
        {"update": i, "loss": 9 / i, "perplexity": 90 / i, "lr": i / 9, "target_tokens_per_second": 100.0 + i}
        for i in range(1, 9)
    ]
    lines[2] |= {"loss": None, "perplexity": math.inf}
    lines.insert(5, {"update": 5, "dev_perplexity": 20.0} | ({"dev_bleu": 12.5} if with_bleu else {}))
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_all_curves_of_all_runs_are_drawn_with_their_names(tmp_path):
    runs = [write_log(tmp_path / "base", with_bleu=True), write_log(tmp_path / "big", with_bleu=False)]
    text = draw_curves(runs, tmp_path / "new" / "curves.svg").read_text(encoding="utf-8")
    assert all(title in text for title in (*TITLES, "base", "big"))
    assert "not in the log" not in text


def test_what_no_run_has_logged_is_said_to_be_missing_and_runs_of_one_name_have_their_paths(tmp_path):
    runs = [write_log(tmp_path / name / "run", with_bleu=False) for name in ("one", "other")]
    text = draw_curves(runs, tmp_path / "curves.svg").read_text(encoding="utf-8")
    assert text.count("not in the log") == 1
    assert all(str(run) in text for run in runs)


def test_panels_share_whole_updates_and_no_axis_is_negative(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(curves, "save_figure", lambda figure, path: drawn.append(figure) or path)
    draw_curves([write_log(tmp_path / "run", with_bleu=True)], tmp_path / "curves.svg")
    *panels, _ = drawn[0].axes
    assert len({panel.get_xlim() for panel in panels}) == 1
    for panel in panels:
        assert all(float(tick).is_integer() for tick in panel.get_xticks())
        assert panel.get_ylim()[0] >= 0


def test_what_cannot_be_drawn_is_refused(tmp_path, capsys, monkeypatch):
    run = write_log(tmp_path / "run", with_bleu=False)
    with pytest.raises(ValueError, match=r"a figure is saved as \.svg or \.png; got 'curves\.txt'"):
        draw_curves([run], tmp_path / "curves.txt")
    with pytest.raises(FileNotFoundError, match=r"holds no log\.jsonl; name a folder that `vaswani train` has written"):
        draw_curves([tmp_path], tmp_path / "curves.svg")
    (run / "log.jsonl").write_text('{"update": 1}\n{')
    with pytest.raises(ValueError, match=r"log\.jsonl, line 2: not JSON"):
        draw_curves([run], tmp_path / "curves.svg")
    (run / "log.jsonl").write_text('{"loss": 1.0}\n')
    assert cli.main(["plot", "--run", str(run), "--output", str(tmp_path / "curves.svg")]) == 1
    assert "log.jsonl, line 1: expected numbers by their names" in capsys.readouterr().err
    (run / "log.jsonl").write_text("")
    with pytest.raises(ValueError, match=r"the log\.jsonl of run is empty; there is nothing to draw yet"):
        draw_curves([run], tmp_path / "curves.svg")
    (run / "log.jsonl").write_text('{"update": 1}\n')
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert cli.main(["plot", "--run", str(run), "--output", str(tmp_path / "curves.svg")]) == 1
    assert 'Drawing needs matplotlib: pip install "vaswani-transformer[plots]"' in capsys.readouterr().err
