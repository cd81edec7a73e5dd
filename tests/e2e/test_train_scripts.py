"""The runs of scripts/run.py are commands that the package understands. One run is executed from text to scores."""

import json
import os
import subprocess
import sys
from pathlib import Path

import print_table3 as table3
import pyarrow.parquet
import pytest
import run as runs
from shortcuts import read_json
from tiny_training import read_log

from vaswani_transformer import VaswaniConfig, cli
from vaswani_transformer.training.recipes import RECIPES, divide_widths, load_recipe

SCRIPTS = Path(__file__).parents[2] / "scripts"
RESULTS = SCRIPTS / "benchmarks/results/table3_reduced"


@pytest.fixture
def record(tmp_path, monkeypatch):
    """Return a function that lists the `vaswani` commands of a run as parsed arguments, and executes none of them."""

    def run(name, *options):
        commands = []
        monkeypatch.setattr(runs, "execute", commands.append)
        assert runs.main([*f"{name} --folder TEXTS --output {tmp_path}/run".split(), *options]) == 0
        ours = [command[command.index("vaswani_transformer") + 1 :] for command in commands if command[0] != "bash"]
        return [cli.build_parser().parse_args(command) for command in ours]

    return run


@pytest.mark.parametrize("name", runs.RUNS)
def test_a_run_prepares_trains_and_scores_its_recipe(record, tmp_path, name):
    rows = ["--rows", "base"] if name.startswith("table3") else []
    prepare, training, *scores = record(name, "--seed", "7", *rows)
    assert (prepare.command, training.command, training.seed) == ("prepare", "train", 7)
    assert training.data == prepare.output == tmp_path / "run/data"
    assert training.recipe == ("table3_base" if rows else prepare.recipe)
    assert training.init_from in (None, prepare.keep_vocabulary)
    assert scores
    for score in scores:
        assert score.model.startswith(str(training.output))
        given, outputs = (score.gold, score.output) if score.command == "parse" else (score.test, score.json)
        assert "TEXTS" in str(given) or str(given) == f"{tmp_path}/run/test.mrg"
        assert outputs.parent == training.output


def test_the_text_of_each_set_is_a_source_file_and_a_target_file(record):
    prepare, _, score = record("iwslt14_de_en")
    found = [*prepare.train, prepare.dev, score.test]
    assert found == [[f"TEXTS/{name}.{language}" for language in ("de", "en")] for name in ("train", "valid", "test")]
    assert score.tokenize == "none"


def test_the_everyday_models_train_on_each_corpus_listed_in_disturbed_text_json(record, tmp_path):
    corpora = read_json(SCRIPTS / "disturbed_text.json")["copies"]
    for name, folder in (("everyday_en_de", tmp_path / "run"), ("everyday_en_de_small_rate", "runs/everyday_en_de")):
        sources = [source for source, _ in record(name)[0].train]
        assert sources == [f"{folder}/text/{corpus}/train.en" for corpus in corpora]


def test_a_run_first_splits_its_treebank_into_three_files_and_ends_if_a_command_fails(tmp_path):
    (tmp_path / "treebank_wsj_sample").mkdir()
    whole = "".join(f"{number}\n" for number in range(1, 3915))
    (tmp_path / "treebank_wsj_sample/wsj_sample.mrg").write_text(whole)  # no line is a tree, so `prepare` fails
    run = tmp_path / "run"
    assert runs.main(f"parsing_wsj_sample --folder {tmp_path} --output {run}".split()) == 1
    parts = [(run / f"{part}.mrg").read_text() for part in ("train", "dev", "test")]
    assert ("".join(parts), [part.count("\n") for part in parts]) == (whole, [3314, 300, 300])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("multi30k_raw", "the run multi30k_raw needs --folder, the folder with its texts"),
        ("table3 --folder x --rows A", "the run table3 has these rows: base A1 A2"),
    ],
)
def test_a_run_without_the_folder_of_its_texts_or_with_an_unknown_row_is_refused(capsys, arguments, message):
    with pytest.raises(SystemExit):
        runs.main(arguments.split())
    assert message in capsys.readouterr().err


def test_rows_of_the_reduced_table_3_differ_from_base_as_in_the_paper_and_their_best_checkpoint_is_scored(
    record, tmp_path
):
    rows = ["base", "A2", "B1", "C1", "C4", "D1", "base_seed1"]
    for row in rows:
        for step in ("09", "10"):
            (tmp_path / "run" / row / "checkpoints" / f"step-000000{step}").mkdir(parents=True)
    log = [{"update": 9, "dev_perplexity": 8.0}, {"update": 10, "loss": 1.0}, {"update": 10, "dev_perplexity": 7.5}]
    (tmp_path / "run/A2/log.jsonl").write_text("\n".join(map(json.dumps, log)))
    (tmp_path / "run/D1/dev_scores.json").touch()  # a row with this file is not trained again
    _, *commands = record("table3_reduced", "--rows", *rows)
    trainings = commands[::2]
    scores = commands[1::2]
    assert [training.recipe for training in trainings] == [f"table3_{r[:4]}" for r in rows if r != "D1"]
    assert trainings[-1].seed == 1
    # The row base has no log that names its best checkpoint, so the first folder that fits step-* is taken.
    assert scores[0].model == f"{tmp_path}/run/base/checkpoints/step-00000009"
    assert scores[1].model == f"{tmp_path}/run/A2/checkpoints/step-00000010"
    assert scores[1].json == tmp_path / "run/A2/dev_scores.json"
    ours = [divide_widths(load_recipe(t.recipe, t.changes), t.divide_widths) for t in trainings]
    sizes = ("encoder_layers", "decoder_layers", "d_model", "d_ff", "num_heads", "d_k", "d_v", "dropout")

    def find_ratios(row, base):
        row_config, base_config = (VaswaniConfig(**recipe.model) for recipe in (row, base))
        return [getattr(row_config, name) / getattr(base_config, name) for name in sizes]

    for training, recipe in zip(trainings, ours, strict=True):
        assert find_ratios(recipe, ours[0]) == find_ratios(RECIPES[training.recipe], RECIPES["table3_base"])


def test_table_3_is_printed_beside_the_table_of_the_paper(capsys, tmp_path):
    rows = {name.removeprefix("table3_") for name in RECIPES if name.startswith("table3_")}
    assert table3.PAPER.keys() == rows == runs.RUNS["table3"]["rows"].keys()
    assert table3.main([str(RESULTS)]) == 0
    assert capsys.readouterr().out == (RESULTS / "table.md").read_text(encoding="utf-8")
    with pytest.raises(SystemExit):
        table3.main([str(tmp_path)])
    assert f"No folder in {tmp_path} holds dev_scores.json" in capsys.readouterr().err


@pytest.mark.slow
def test_the_base_run_goes_from_text_to_scores_on_two_processes(tmp_path):
    run = tmp_path / "run"
    rows = [{"translation": {"de": f"wort {n} {n + 1}", "en": f"word {n} {n + 1}"}} for n in range(320)]
    for split, part in (("train", rows[:300]), ("validation", rows[300:310]), ("test", rows[310:])):
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(part), tmp_path / f"{split}-00000-of-00001.parquet")
    options = "--num_updates 6 --divide_widths 16 --set tokens_per_batch=800 --log_interval 3 --mixed_precision no"
    launch = f"{sys.executable} -m torch.distributed.run --nproc_per_node 2 -m vaswani_transformer"
    environment = os.environ | {"ACCELERATE_USE_CPU": "true"}
    options = f"base_en_de --folder {tmp_path} --output {run} {options}".split()
    command = [sys.executable, SCRIPTS / "run.py", *options, "--launch", launch]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    scores = read_json(run / "test_scores.json")["scores"]
    assert table3.BLEU in {score["name"] for score in scores}
    assert [line["update"] for line in read_log(run) if "loss" in line] == [3, 6]
    assert read_json(run / "recipe.json")["num_processes"] == 2
