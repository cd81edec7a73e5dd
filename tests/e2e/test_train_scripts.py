"""The documented runs: each name expands to commands that the package understands, and one is run to its scores."""

import json
import os
import subprocess
import sys
from pathlib import Path

import print_table3 as table3
import pyarrow
import pyarrow.parquet
import pytest
import torch

from vaswani_transformer import VaswaniConfig, cli
from vaswani_transformer.training.recipes import RECIPES, TABLE_3, divide_widths, load_recipe

SCRIPTS = Path(__file__).parents[2] / "scripts"
RESULTS = SCRIPTS / "benchmarks" / "results" / "table3_reduced"
# Writes down how it was called, one argument a line and an empty line at the end, and does nothing.
STUB = '#!/bin/sh\nprintf "%s\\n" "{name}" "$@" "" >> "$COMMANDS"\n'


@pytest.fixture
def record(tmp_path):
    """A function that runs a script and returns the parsed arguments of each `vaswani` command, without obeying it."""
    for name in ("vaswani", "accelerate", "python"):
        (tmp_path / name).write_text(STUB.format(name=name))
        (tmp_path / name).chmod(0o755)

    def run(name, *arguments, **variables):
        log = tmp_path / "commands"
        log.unlink(missing_ok=True)
        environment = os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "COMMANDS": str(log)}
        command = ["bash", SCRIPTS / name, *arguments]
        done = subprocess.run(command, env=environment | variables, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        commands = [command.split("\n") for command in log.read_text().removesuffix("\n\n").split("\n\n")]
        commands = [command[command.index("train") - 1 :] if "train" in command else command for command in commands]
        return [cli.build_parser().parse_args(command[1:]) for command in commands if command[0] != "python"]

    return run


@pytest.mark.parametrize(
    ("name", "recipe", "train", "test"),
    [
        ("base_en_de", "base_en_de", ["wmt/wmt14:de-en"], ["wmt/wmt14:de-en"]),
        ("big_en_de", "big_en_de", ["wmt/wmt14:de-en"], ["wmt/wmt14:de-en"]),
        ("big_en_fr", "big_en_fr", ["wmt/wmt14:fr-en"], ["wmt/wmt14:fr-en"]),
        ("iwslt14_de_en", "iwslt14_de_en", ["train.de", "train.en"], ["test.de", "test.en"]),
        ("general_en_de_small", "general_en_de_small", ["tatoeba_en_de/train.en", "tatoeba_en_de/train.de"],
         ["news_en-de/newstest2014.en", "news_en-de/newstest2014.de"]),
        ("everyday_en_de", "everyday_en_de", [f"run/text/tatoeba_en_de/train.{side}" for side in ("en", "de")],
         ["tatoeba_en_de/dev.en", "tatoeba_en_de/dev.de"]),
        ("multi30k_lc", "multi30k_tiny", ["train.lc.norm.tok.en", "train.lc.norm.tok.de"],
         ["test_2016_flickr.lc.norm.tok.en", "test_2016_flickr.lc.norm.tok.de"]),
        ("multi30k_raw", "multi30k_tiny", ["train.en", "train.de"], ["test_2016_flickr.en", "test_2016_flickr.de"]),
        ("parsing_craft", "parsing_small", ["treebank_craft/train.mrg"], "treebank_craft/dev.mrg"),
        ("parsing_wsj_sample", "parsing_small", ["run/train.mrg"], "run/test.mrg"),
    ],
)  # fmt: skip
def test_a_name_prepares_trains_and_scores_its_recipe(record, tmp_path, name, recipe, train, test):
    sample = tmp_path / "treebank_wsj_sample" / "wsj_sample.mrg"
    sample.parent.mkdir()
    sample.write_text("".join(f"{number}\n" for number in range(1, 3915)))
    (tmp_path / "run" / "text").mkdir(parents=True)  # as OpusTrainer disturbed it
    folder = [] if "wmt" in train[0] else [str(tmp_path)]
    commands = record("train.sh", name, *folder, "--seed", "7", RUN=f"{tmp_path}/run")
    prepare, training, *_, score = commands
    assert [command.command for command in commands[:2]] == ["prepare", "train"]
    assert (prepare.recipe, training.recipe, training.data, training.seed) == (recipe, recipe, prepare.output, 7)
    prefix = f"{tmp_path}/" if folder else ""
    assert prepare.train[0] == [f"{prefix}{file}" for file in train]
    assert score.model == str(training.output) == f"{tmp_path}/run"
    if name.startswith("parsing"):
        assert (prepare.task, prepare.copy_words, str(score.gold)) == ("parsing", True, f"{prefix}{test}")
    else:
        assert score.test == [f"{prefix}{file}" for file in test]
        assert [f"{score.source_language}_{score.target_language}"] == [
            name[-5:] if name.startswith(("big", "iwslt")) else "en_de"
        ]
        assert score.tokenize == ("none" if name in ("iwslt14_de_en", "multi30k_lc") else "13a")
    if name == "parsing_wsj_sample":
        parts = [(tmp_path / "run" / f"{part}.mrg").read_text() for part in ("train", "dev", "test")]
        assert ("".join(parts), [part.count("\n") for part in parts]) == (sample.read_text(), [3314, 300, 300])
    if name == "everyday_en_de":
        copies = json.loads((SCRIPTS / "disturbed_text.json").read_text())["copies"]
        assert [source for source, _ in prepare.train] == [
            f"{tmp_path}/run/text/{corpus}/train.en" for corpus in copies
        ]


def test_reduced_rows_stand_to_base_as_in_the_paper_and_their_best_epoch_is_scored(record, tmp_path):
    run, rows = tmp_path / "run", ["base", "A2", "B1", "C1", "C4", "D1", "base_seed1"]
    for side in ("en", "de"):
        (tmp_path / f"train.{side}").write_text("".join(f"{number}\n" for number in range(1, 8)))
    for row in rows:
        for step in ("09", "10"):
            (run / row / "checkpoints" / f"step-000000{step}").mkdir(parents=True)
        for name in ("recipe.json", "log.jsonl"):
            (run / row / name).touch()
    (tmp_path / "results" / "D1").mkdir(parents=True)
    (tmp_path / "results" / "D1" / "dev_scores.txt").touch()  # done before
    variables = {"RUN": str(run), "RESULTS": f"{tmp_path}/results"}
    _, *commands = record("table3.sh", "--reduced", str(tmp_path), " ".join(rows), **variables)
    assert (run / "train.de").read_text() == "1\n7\n"
    trainings, scores = commands[::2], commands[1::2]
    assert [training.recipe for training in trainings] == [f"table3_{r[:4]}" for r in rows if r != "D1"]
    assert trainings[-1].seed == 1
    assert scores[1].model == f"{run}/A2/checkpoints/step-00000009"
    assert (tmp_path / "results" / "A2" / "dev_scores.txt").read_text().startswith("processor ")
    ours = [divide_widths(load_recipe(t.recipe, t.changes), t.divide_widths) for t in trainings]
    sizes = ("encoder_layers", "decoder_layers", "d_model", "d_ff", "num_heads", "d_k", "d_v", "dropout")
    for training, recipe in zip(trainings, ours, strict=True):
        pairs = ((recipe, ours[0]), (RECIPES[training.recipe], RECIPES["table3_base"]))
        configs = [[VaswaniConfig(**one.model) for one in pair] for pair in pairs]
        ratios = [[getattr(row, name) / getattr(base, name) for name in sizes] for row, base in configs]
        assert ratios[0] == ratios[1]


def test_the_table_stands_beside_the_paper_s(capsys, tmp_path):
    assert table3.PAPER.keys() == TABLE_3.keys()
    assert table3.main([str(RESULTS), "--plot", f"{tmp_path}/curves.svg"]) == 0
    assert capsys.readouterr().out == (RESULTS / "table.md").read_text(encoding="utf-8")
    assert (tmp_path / "curves.svg").stat().st_size > 10_000
    with pytest.raises(ValueError, match="holds no row with a dev_scores"):
        table3.main([str(tmp_path)])


@pytest.mark.slow
def test_the_base_run_goes_from_text_to_scores_on_two_processes(tmp_path):
    rows = [{"translation": {"de": f"wort {n} {n + 1}", "en": f"word {n} {n + 1}"}} for n in range(320)]
    for split, part in (("train", rows[:300]), ("validation", rows[300:310]), ("test", rows[310:])):
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(part), tmp_path / f"{split}-00000-of-00001.parquet")
    options = "--num_updates 6 --divide_widths 16 --set tokens_per_batch=800 --log_interval 3 --mixed_precision no"
    launch = f"{sys.executable} -m torch.distributed.run --nproc_per_node 2 -m vaswani_transformer"
    environment = os.environ | {"RUN": f"{tmp_path}/run", "LAUNCH": launch, "ACCELERATE_USE_CPU": "true"}
    environment["PATH"] = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    (tmp_path / "vaswani").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m vaswani_transformer "$@"\n')
    (tmp_path / "vaswani").chmod(0o755)
    command = ["bash", SCRIPTS / "train.sh", "base_en_de", str(tmp_path), *options.split()]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "BLEU" in done.stdout
    log = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert [line["update"] for line in log if "loss" in line] == [3, 6]
    for path in (tmp_path / "run" / "checkpoints").rglob("state.pt"):
        assert len(torch.load(path, weights_only=True)["random_states"]) == 2


@pytest.mark.parametrize("path", sorted(SCRIPTS.glob("*.sh")), ids=lambda path: path.name)
def test_every_shell_script_is_bash(path):
    subprocess.run(["bash", "-n", path], check=True)
