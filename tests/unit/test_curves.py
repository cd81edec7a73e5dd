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


def test_all_curves_of_all_runs_are_drawn_with_their_names(tmp_path, monkeypatch):
    drawn, save = [], curves.save_figure
    monkeypatch.setattr(curves, "save_figure", lambda figure, path: drawn.append(figure) or save(figure, path))
    runs = [write_log(tmp_path / name, with_bleu=name == "big") for name in ("one/run", "other/run", "big")]
    text = draw_curves(runs, tmp_path / "new" / "curves.svg").read_text(encoding="utf-8")
    assert all(title in text for title in (*TITLES, str(runs[0]), str(runs[1]), ">big<"))
    assert "not in the log" not in text
    *panels, _ = drawn[0].axes
    assert len({panel.get_xlim() for panel in panels}) == 1
    for panel in panels:
        assert all(float(tick).is_integer() for tick in panel.get_xticks())
        assert panel.get_ylim()[0] >= 0


def test_what_cannot_be_drawn_is_refused(tmp_path, capsys, monkeypatch):
    run, picture = write_log(tmp_path / "run", with_bleu=False), tmp_path / "curves.svg"
    assert draw_curves([run], picture).read_text(encoding="utf-8").count("not in the log") == 1
    with pytest.raises(FileNotFoundError, match=r"holds no log\.jsonl; name a folder that `vaswani train` has written"):
        draw_curves([tmp_path], picture)
    (run / "log.jsonl").write_text('{"update": 1}\n{')
    with pytest.raises(ValueError, match=r"log\.jsonl was not written by this version of the package, or is damaged"):
        draw_curves([run], picture)
    (run / "log.jsonl").write_text("")
    with pytest.raises(ValueError, match=r"the log\.jsonl of run is empty; there is nothing to draw yet"):
        draw_curves([run], picture)
    (run / "log.jsonl").write_text('{"update": 1}\n')
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert cli.main(["plot", "--run", str(run), "--output", str(picture)]) == 1
    assert 'Drawing needs matplotlib: pip install "vaswani-transformer[plots]"' in capsys.readouterr().err
