"""The documented runs: each script gives commands that the package understands, and one is run to its scores."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import print_table3 as table3
import pyarrow
import pyarrow.parquet
import pytest

from vaswani_transformer import cli
from vaswani_transformer.data.phrasebook.pairs import generate_pairs
from vaswani_transformer.training.recipes import RECIPES, TABLE_3

SCRIPTS = Path(__file__).parents[2] / "scripts"
COMMANDS_OF_PACKAGE = Path(sys.executable).parent
CORPORA = ("tatoeba_en_de", "multi30k", "europarl_en_de", "news_en-de")
OPEN_SOURCES = (
    *("debian_website", "ethereum_org", "fastapi_docs", "mlqe_pe_wikipedia", "mozilla_www"),
    *("ms_dynamics365_business", "ms_dynamics365_projops_insights"),
)
EVERYDAY_CORPORA = ("tatoeba_en_de", "europarl_en_de", *(f"more_en_de/{source}" for source in OPEN_SOURCES))
VARIABLES = {"DATA", "RUN", "PREPARED", "RECIPE", "NUM_PAIRS", "VOCAB_SIZE", "ACCELERATE_CONFIG", "ACCELERATE_USE_CPU"}
# Writes down how it was called, one argument a line and an empty line at the end, and does nothing.
STUB = '#!/bin/sh\nprintf "%s\\n" "{name}" "$@" "" >> "$COMMANDS"\n'


def run_script(name, *arguments, commands, **variables):
    """`bash scripts/NAME`, with the commands it uses taken from the folder `commands`."""
    inherited = {key: value for key, value in os.environ.items() if key not in VARIABLES}
    environment = inherited | {"PATH": f"{commands}{os.pathsep}{os.environ['PATH']}"} | variables
    return subprocess.run(
        ["bash", str(SCRIPTS / name), *map(str, arguments)],
        env=environment,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )


@pytest.fixture
def record(tmp_path):
    """A function that runs a script and returns the commands it gave, each a list of words, without obeying them."""
    (tmp_path / "stubs").mkdir()
    for name in ("vaswani", "accelerate", "python"):
        stub = tmp_path / "stubs" / name
        stub.write_text(STUB.format(name=name))
        stub.chmod(0o755)
    log = tmp_path / "commands"

    def run_and_read(name, *arguments, **variables):
        variables = {"COMMANDS": str(log), "RUN": str(tmp_path / "run")} | variables
        done = run_script(name, *arguments, commands=tmp_path / "stubs", **variables)
        assert done.returncode == 0, done.stderr
        return [command.split("\n") for command in log.read_text().removesuffix("\n\n").split("\n\n")]

    return run_and_read


def understood(command):
    """What the package makes of a command of a script."""
    if command[0] == "accelerate":
        command = command[command.index("vaswani_transformer") :]
    return cli.build_parser().parse_args(command[1:])


def launch_options(command):
    """The options of `accelerate launch` itself."""
    assert command[:2] == ["accelerate", "launch"]
    return dict(zip(*[iter(command[2 : command.index("-m")])] * 2, strict=True))


@pytest.mark.parametrize(
    ("name", "takes_folder", "num_devices", "languages"),
    [
        ("base_en_de", False, "8", ("en", "de")),
        ("big_en_de", False, "8", ("en", "de")),
        ("big_en_fr", False, "8", ("en", "fr")),
        ("iwslt14_de_en", True, "1", ("de", "en")),
        ("general_en_de", True, "1", ("en", "de")),
        ("everyday_en_de", True, "1", ("en", "de")),
    ],
)
def test_a_script_prepares_trains_and_scores_its_recipe(record, tmp_path, name, takes_folder, num_devices, languages):
    prepare, train, *scores = record(f"train_{name}.sh", *([tmp_path / "my corpora"] if takes_folder else []))
    options = launch_options(train)
    assert options["--num_processes"] == num_devices
    assert (SCRIPTS.parent / options["--config_file"]).exists()
    prepare, train, *scores = map(understood, (prepare, train, *scores))
    assert name in RECIPES
    assert prepare.recipe == train.recipe == name
    assert train.data == prepare.output
    assert train.mixed_precision == "bf16"
    assert (prepare.source_language, prepare.target_language) == languages
    for command in scores:  # what is not given is that of the model
        given = command.source_language, command.target_language
        assert given in (languages, (None, None))
    assert scores
    assert all(score.model == str(train.output) for score in scores)


def test_the_paper_s_data_are_read_from_the_hub(record):
    prepare, _, score = map(understood, (record("train_big_en_fr.sh")))
    assert prepare.train == [prepare.dev] == [score.test] == [["wmt/wmt14:fr-en"]]


def test_number_of_gpus_arguments_and_environment_reach_the_commands(record, tmp_path):
    config = tmp_path / "mine.yaml"
    config.write_text("distributed_type: MULTI_GPU\n")
    arguments = ["2", "--accumulation_steps", "4", "--mixed_precision", "no"]
    variables = {"DATA": "/corpora/mine", "RECIPE": "multi30k_tiny", "ACCELERATE_CONFIG": str(config)}
    variables["PREPARED"] = "/shared/prepared"
    commands = record("train_base_en_de.sh", *arguments, **variables)
    assert launch_options(commands[1]) == {"--config_file": str(config), "--num_processes": "2"}
    prepare, train, score = map(understood, commands)
    assert prepare.train == [score.test] == [["/corpora/mine"]]
    assert str(prepare.output) == str(train.data) == "/shared/prepared"
    assert prepare.recipe == train.recipe == "multi30k_tiny"
    assert (train.accumulation_steps, train.mixed_precision) == (4, "no")


@pytest.mark.parametrize(("kind", "infix", "tokenize"), [("lc", ".lc.norm.tok", "none"), ("raw", "", "13a")])
def test_multi30k_is_prepared_trained_and_scored_on_two_sets(record, tmp_path, kind, infix, tokenize):
    folder = tmp_path / "multi 30k"
    prepare, train, *scores = map(understood, record("train_multi30k.sh", folder, kind))
    assert prepare.train == [[f"{folder}/train{infix}.en", f"{folder}/train{infix}.de"]]
    assert prepare.dev == [f"{folder}/val{infix}.en", f"{folder}/val{infix}.de"]
    assert prepare.recipe == train.recipe == "multi30k_tiny"
    assert train.data == prepare.output
    assert [score.test for score in scores] == [
        prepare.dev,
        [f"{folder}/test_2016_flickr{infix}.en", f"{folder}/test_2016_flickr{infix}.de"],
    ]
    assert {(score.model, score.tokenize) for score in scores} == {(str(train.output), tokenize)}


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        *(
            (name, [], "give the folder that the top")
            for name in ("iwslt14_de_en", "general_en_de", "everyday_en_de", "multi30k")
        ),
        ("multi30k", ["."], "the second argument is lc or raw, got: "),
        ("parsing", ["."], "the second argument is craft or wsj_sample, got: "),
    ],
)
def test_a_script_without_its_arguments_says_which(record, name, arguments, message):
    with pytest.raises(AssertionError, match=message):
        record(f"train_{name}.sh", *arguments)


def test_the_parser_is_trained_and_scored_on_one_treebank(record, tmp_path):
    prepare, train, parse = map(understood, record("train_parsing.sh", tmp_path, "craft"))
    assert prepare.train == [[f"{tmp_path}/treebank_craft/train.mrg"]]
    assert prepare.dev == [str(parse.gold)] == [f"{tmp_path}/treebank_craft/dev.mrg"]
    assert (prepare.task, prepare.copy_words) == ("parsing", True)
    assert prepare.recipe == train.recipe == "parsing_small"
    assert (train.data, parse.model) == (prepare.output, str(train.output))


def test_the_wsj_sample_is_split_by_position(record, tmp_path):
    sample = tmp_path / "treebank_wsj_sample" / "wsj_sample.mrg"
    sample.parent.mkdir()
    sample.write_text("".join(f"((S (CD {number})))\n" for number in range(1, 3915)))
    prepare, _, parse = map(understood, record("train_parsing.sh", tmp_path, "wsj_sample"))
    parts = [Path(name).read_text().split("\n")[:-1] for name in (*prepare.train[0], *prepare.dev, parse.gold)]
    assert list(map(len, parts)) == [3314, 300, 300]
    assert "\n".join([*parts[0], *parts[1], *parts[2], ""]) == sample.read_text()


def test_table_3_shares_its_data_and_scores_the_development_set(record, tmp_path):
    for row in ("base", "C4"):
        (tmp_path / "run" / row).mkdir(parents=True)  # training would make it
    variables = {"DATA": "phrasebook", "NUM_PAIRS": "50", "PREPARED": str(tmp_path / "data")}
    commands = record("table3.sh", "base C4", "2", "--num_updates", "9", **variables)
    assert launch_options(commands[1])["--num_processes"] == "2"
    prepare, *rows = map(understood, commands[:-1])
    assert (prepare.output, prepare.num_pairs) == (tmp_path / "data", 50)
    assert [(train.recipe, train.data, train.num_updates) for train in rows[::2]] == [
        ("table3_base", tmp_path / "data", 9),
        ("table3_C4", tmp_path / "data", 9),
    ]
    assert [score.model for score in rows[1::2]] == [str(train.output) for train in rows[::2]]
    assert {(score.split, score.num_pairs, *score.test) for score in rows[1::2]} == {("validation", 50, *prepare.dev)}
    assert commands[-1] == ["python", "scripts/print_table3.py", str(tmp_path / "run")]


def test_table_3_reads_a_folder_of_text_and_makes_all_rows_smaller(record, tmp_path):
    folder = tmp_path / "multi 30k"
    folder.mkdir()
    (folder / "train.en").touch()
    for row in ("base", "C4"):
        (tmp_path / "run" / row).mkdir(parents=True)
    size = ["--divide_widths", "4", "--set", "warmup_updates=60", "--seed", "1"]
    *commands, _ = record("table3.sh", "base C4", "1", *size, DATA=str(folder), VOCAB_SIZE="4000")
    prepare, *rows = map(understood, commands)
    assert prepare.train == [[f"{folder}/train.en", f"{folder}/train.de"]]
    assert prepare.dev == [f"{folder}/val.en", f"{folder}/val.de"]
    assert prepare.vocab_size == 4_000
    assert [(train.divide_widths, train.changes, train.seed) for train in rows[::2]] == [
        (4, ["warmup_updates=60"], 1)
    ] * 2
    assert [score.test for score in rows[1::2]] == [prepare.dev, prepare.dev]


def test_table_3_started_again_scores_only_the_rows_without_scores(record, tmp_path):
    for row in TABLE_3:
        (tmp_path / "run" / row).mkdir(parents=True)
        (tmp_path / "run" / row / "dev_scores.txt").write_text("BLEU 1.0\n")
    (tmp_path / "run" / "E" / "dev_scores.txt").unlink()
    _, *commands, _ = record("table3.sh")
    commands = list(map(understood, commands))
    assert [command.recipe for command in commands if command.command == "train"] == [
        f"table3_{row}" for row in TABLE_3
    ]
    assert [command.model for command in commands if command.command == "evaluate"] == [str(tmp_path / "run" / "E")]


@pytest.fixture
def print_table3(monkeypatch):
    """The program, to be called with its argument."""

    def run(folder):
        monkeypatch.setattr(sys, "argv", ["print_table3.py", str(folder)])
        table3.main()

    assert table3.PAPER.keys() == TABLE_3.keys()
    return run


def write_row(folder, row, perplexity, bleu, **model):
    """What the training and the scoring of a row leave behind."""
    (folder / row).mkdir()
    description = {"recipe": {"num_updates": 100_000, "model": model}, "num_parameters": 27_890_000}
    (folder / row / "recipe.json").write_text(json.dumps(description))
    (folder / row / "dev_scores.txt").write_text(
        "BLEU 9.99  nrefs:1|tok:13a\n"
        f"BLEU, tokenised, compounds split as in the paper {bleu:.2f}  nrefs:1|tok:split\n"
        f"perplexity {perplexity:.3f} per sub-word\nsearch num_beams:4\n"
    )


def test_the_table_stands_beside_the_paper_s(print_table3, tmp_path, capsys):
    write_row(tmp_path, "C4", 70.5, 3.14159, d_model=64, d_ff=512, d_k=8, d_v=8)
    write_row(tmp_path, "base", 5.0123, 25.7777, d_model=128, d_ff=512, d_k=16, d_v=16)
    print_table3(tmp_path)
    lines = capsys.readouterr().out.splitlines()
    sizes = "6 | 128 | 512 | 8 | 16 | 16 | 0.1 | 0.1 | sinusoidal"
    assert lines[2:4] == [
        f"| base | {sizes} | 100,000 | 5.01 | 4.92 | 25.8 | 25.8 | 27.9 | 65 |",
        "| C4 |  | 64 |  |  | 8 | 8 |  |  |  | 100,000 | 70.50 | 5.75 | 3.1 | 24.5 | 27.9 | 28 |",
    ]
    assert {line.count("|") for line in lines[:4]} == {18}
    assert lines[5] == "BLEU of tokens, compounds split as in the paper: nrefs:1|tok:split"


# The paper's rows against its base: D1 has both worse, C5 both better, C3 a better perplexity and a worse BLEU, E none.
@pytest.mark.parametrize(
    ("row", "perplexity", "bleu", "expected"),
    [
        ("D1", 10.2, 19.5, "| D1 | +2.0 % | +17.3 % | agrees | -0.5 | -1.2 | agrees |"),
        ("D1", 9.7, 20.5, "| D1 | -3.0 % | +17.3 % | does not agree | +0.5 | -1.2 | does not agree |"),
        ("D1", 10.19, 19.51, "| D1 | +1.9 % | +17.3 % | too close to tell | -0.5 | -1.2 | too close to tell |"),
        ("C5", 9.0, 25.0, "| C5 | -10.0 % | -5.3 % | agrees | +5.0 | +0.2 | agrees |"),
        ("C3", 9.0, 25.0, "| C3 | -10.0 % | -0.8 % | agrees | +5.0 | -0.3 | does not agree |"),
        ("E", 10.1, 20.1, "| E | +1.0 % | +0.0 % | agrees | +0.1 | -0.1 | agrees |"),
        ("E", 12.0, 20.1, "| E | +20.0 % | +0.0 % | does not agree | +0.1 | -0.1 | agrees |"),
    ],
)
def test_a_row_s_way_from_base_is_held_against_the_paper_s(
    print_table3, tmp_path, capsys, row, perplexity, bleu, expected
):
    write_row(tmp_path, "base", 10.0, 20.0)
    write_row(tmp_path, row, perplexity, bleu)
    print_table3(tmp_path)
    *_, moves, _, legend = capsys.readouterr().out.splitlines()
    assert moves == expected
    assert "at least 2.0 % of perplexity or 0.5 BLEU here" in legend


def test_rows_without_base_are_not_compared(print_table3, tmp_path, capsys):
    write_row(tmp_path, "C4", 70.5, 3.1, d_model=64)
    print_table3(tmp_path)
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].startswith("| C4 | 6 | 64 | 2048 | 8 | 8 | 8 |")
    assert lines[-1] == "Without base no row can be compared with it: train it too."


def test_a_score_of_before_is_named_with_what_to_do(print_table3, tmp_path, capsys):
    (tmp_path / "E").mkdir()
    (tmp_path / "E" / "recipe.json").write_text(json.dumps({"recipe": {"num_updates": 1}, "num_parameters": 1}))
    (tmp_path / "E" / "dev_scores.txt").write_text("BLEU 9.99  nrefs:1|tok:13a\nperplexity 5.003 per sub-word\n")
    with pytest.raises(SystemExit):
        print_table3(tmp_path)
    assert "remove it and score this run again with scripts/table3.sh" in capsys.readouterr().err


def test_a_table_without_rows_is_refused(print_table3, tmp_path, capsys):
    with pytest.raises(SystemExit):
        print_table3(tmp_path)
    assert "holds no row with a dev_scores.txt; run scripts/table3.sh first" in capsys.readouterr().err


def test_mixed_text_is_prepared_corpus_by_corpus(record, tmp_path):
    for name, corpora, weights in (("general", CORPORA, None), ("everyday", EVERYDAY_CORPORA, [2, *[1] * 8])):
        (tmp_path / "commands").unlink(missing_ok=True)
        prepare, train, score = map(understood, record(f"train_{name}_en_de.sh", tmp_path))
        assert prepare.train == [[f"{tmp_path}/{corpus}/train.{side}" for side in ("en", "de")] for corpus in corpora]
        assert prepare.weights == weights
    assert prepare.dev == score.test == [f"{tmp_path}/tatoeba_en_de/dev.{side}" for side in ("en", "de")]
    assert prepare.recipe == train.recipe == "everyday_en_de"
    assert (train.data, score.model) == (prepare.output, str(train.output))


def write_parquet(folder, split, pairs):
    """Pairs in the schema of the Hub's WMT 2014."""
    rows = [{"translation": {"de": german, "en": english}} for english, german in pairs]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / f"{split}-00000-of-00001.parquet")


@pytest.mark.slow
@pytest.mark.skipif(
    not all(shutil.which(name, path=COMMANDS_OF_PACKAGE) for name in ("vaswani", "accelerate")),
    reason="needs the package installed (pip install -e .) beside the interpreter that runs the tests",
)
def test_the_base_script_goes_from_parquet_to_scores_on_two_processes(tmp_path):
    data, run = tmp_path / "wmt14", tmp_path / "run"
    data.mkdir()
    for split, num_pairs in (("train", 300), ("validation", 10), ("test", 10)):
        write_parquet(data, split, generate_pairs("de", split=split.replace("validation", "dev"), num_pairs=num_pairs))
    arguments = shlex.split("2 --num_updates 6 --set tokens_per_batch=800 --log_interval 3 --mixed_precision no")
    done = run_script(
        "train_base_en_de.sh",
        *arguments,
        commands=COMMANDS_OF_PACKAGE,
        DATA=str(data),
        RUN=str(run),
        RECIPE="phrasebook",
        ACCELERATE_CONFIG="scripts/accelerate/8_cpu_processes.yaml",
        OMP_NUM_THREADS="1",
    )
    assert done.returncode == 0, done.stderr
    scores = [line for line in done.stdout.splitlines() if line.startswith("BLEU")]
    assert ["case:mixed" in scores[0], "case:lc" in scores[1]] == [True, True]
    assert len((run / "translations.txt").read_text(encoding="utf-8").splitlines()) == 10
    log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    assert [line["update"] for line in log if "loss" in line] == [3, 6]
    random_states = list((run / "checkpoints").rglob("random_states_*.pkl"))
    assert {path.stem for path in random_states} == {"random_states_0", "random_states_1"}
