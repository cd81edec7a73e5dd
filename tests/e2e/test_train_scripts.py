"""The documented runs: each script gives commands that the package understands, and one is run to its scores."""

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import plot_table3
import print_table3 as table3
import pyarrow
import pyarrow.parquet
import pytest

from vaswani_transformer import VaswaniConfig, cli
from vaswani_transformer.data.phrasebook.pairs import generate_pairs
from vaswani_transformer.training.recipes import RECIPES, TABLE_3, divide_widths, load_recipe

SCRIPTS = Path(__file__).parents[2] / "scripts"
COMMANDS_OF_PACKAGE = Path(sys.executable).parent
CORPORA = ("tatoeba_en_de", "multi30k", "europarl_en_de", "news_en-de")
OPEN_SOURCES = (
    *("debian_website", "ethereum_org", "fastapi_docs", "mlqe_pe_wikipedia", "mozilla_www"),
    *("ms_dynamics365_business", "ms_dynamics365_projops_insights"),
)
EVERYDAY_CORPORA = ("tatoeba_en_de", "europarl_en_de", *(f"more_en_de/{source}" for source in OPEN_SOURCES))
VARIABLES = {
    "DATA",
    "RUN",
    "RESULTS",
    "PREPARED",
    "RECIPE",
    "NUM_PAIRS",
    "VOCAB_SIZE",
    "PARSER",
    "INIT_FROM",
    "ACCELERATE_CONFIG",
    "ACCELERATE_USE_CPU",
}
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
    assert (prepare.source_language or "en", prepare.target_language or "de") == languages
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


def test_on_cpus_a_script_trains_in_bfloat16_only_where_the_processor_computes_in_it(record):
    config = str(SCRIPTS / "accelerate" / "1_cpu.yaml")
    _, train, _ = map(understood, record("train_base_en_de.sh", "1", ACCELERATE_CONFIG=config))
    computes_in_it = "avx512_bf16" in Path("/proc/cpuinfo").read_text()
    assert train.mixed_precision == ("bf16" if computes_in_it else "no")


@pytest.mark.parametrize(("kind", "infix", "tokenize"), [("lc", ".lc.norm.tok", "none"), ("raw", "", "13a")])
def test_multi30k_is_prepared_trained_and_scored_on_two_sets(record, tmp_path, kind, infix, tokenize):
    folder = tmp_path / "multi 30k"
    prepare, train, *scores = map(understood, record("train_multi30k.sh", folder, kind, "--seed", "7"))
    assert prepare.train == [[f"{folder}/train{infix}.en", f"{folder}/train{infix}.de"]]
    assert prepare.dev == [f"{folder}/val{infix}.en", f"{folder}/val{infix}.de"]
    assert prepare.recipe == train.recipe == "multi30k_tiny"
    assert (train.data, train.seed) == (prepare.output, 7)
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
        ("parsing", ["."], "the second argument is craft, craft_and_text or wsj_sample, got: "),
    ],
)
def test_a_script_without_its_arguments_says_which(record, name, arguments, message):
    with pytest.raises(AssertionError, match=message):
        record(f"train_{name}.sh", *arguments)


def test_the_parser_is_trained_and_scored_on_one_treebank(record, tmp_path):
    prepare, train, parse = map(understood, record("train_parsing.sh", tmp_path, "craft", "--seed", "7"))
    assert prepare.train == [[f"{tmp_path}/treebank_craft/train.mrg"]]
    assert prepare.dev == [str(parse.gold)] == [f"{tmp_path}/treebank_craft/dev.mrg"]
    assert (prepare.task, prepare.copy_words) == ("parsing", True)
    assert prepare.recipe == train.recipe == "parsing_small"
    assert (train.data, parse.model) == (prepare.output, str(train.output))
    assert train.seed == 7


def test_the_parser_is_trained_on_news_that_another_parsed_beside_the_treebank(record, tmp_path):
    for name in ("news_en-de/train.en", "run/partial"):  # parsing would write the second
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    (_, *_), first, prepare, train, _ = record("train_parsing.sh", tmp_path, "craft_and_text", PARSER="first")
    first, prepare, train = map(understood, (first, prepare, train))
    assert (first.model, first.input) == ("first", tmp_path / "run" / "news.txt")
    news = tmp_path / "run" / "news.mrg"
    assert prepare.train == [[f"{tmp_path}/treebank_craft/train.mrg"], [str(news)]]
    assert (train.data, train.init_from) == (prepare.output, None)
    assert news.exists()
    assert not first.output.exists()
    commands = record("train_parsing.sh", tmp_path, "craft_and_text", PARSER="first")
    assert [command[1] for command in commands[5:]] == ["prepare", "train", "parse"]


def test_news_is_split_into_words_as_treebanks_are():
    script = (SCRIPTS / "train_parsing.sh").read_text()
    function = script[script.index("split_words() {") : script.index("\n}\n")]
    lines = ["Hi!", "He can't do it, and they're \"here\" (don't ask).", "word " * 41, "The isn't 5% a café's."]
    done = subprocess.run(
        ["bash", "-c", f"{function}\n}}\nsplit_words"],
        env=os.environ | {"PATH": f"{COMMANDS_OF_PACKAGE}{os.pathsep}{os.environ['PATH']}"},
        input="".join(f"{line}\n" for line in lines),
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    assert done.stdout.split("\n") == [
        "He ca n't do it , and they 're \" here \" ( do n't ask ) .",
        "The is n't 5 % a café 's .",
        "",
    ]


def test_the_parser_goes_on_from_another_with_its_vocabulary(record, tmp_path):
    prepare, train, _ = map(understood, record("train_parsing.sh", tmp_path, "craft", INIT_FROM="another parser"))
    assert prepare.keep_vocabulary == train.init_from == "another parser"


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


def test_a_row_of_table_3_is_trained_again_with_the_seed_of_its_name(record, tmp_path):
    (tmp_path / "run" / "base_seed3").mkdir(parents=True)
    _, train, score, _ = record("table3.sh", "base_seed3", "1")
    assert (understood(train).recipe, understood(train).seed) == ("table3_base", 3)
    assert understood(score).model == str(tmp_path / "run" / "base_seed3")


REDUCED_ROWS = {"base_seed1", "base_seed2", *TABLE_3} - {"A3", "A4", "B2", "C3", "C5", "C7", "big"}


@pytest.fixture
def reduced(tmp_path):
    """Arguments and variables of table3_reduced.sh, with a corpus of seven pairs and all rows trained."""
    data, run = tmp_path / "my tatoeba", tmp_path / "run"
    data.mkdir()
    for side in ("en", "de"):
        (data / f"train.{side}").write_text("".join(f"{side} {number}\n" for number in range(1, 8)))
    for row in REDUCED_ROWS:
        (run / row / "checkpoints" / "step-00000009").mkdir(parents=True)
        (run / row / "checkpoints" / "step-00000010").mkdir()
        for name in ("recipe.json", "log.jsonl"):
            (run / row / name).write_text(f"{name} of {row}")
    return {"data": data, "run": run, "results": tmp_path / "results"}


def test_a_reduced_row_is_trained_until_patience_ends_and_its_best_epoch_is_scored(record, reduced):
    prepare, train, score, *tables = record("table3_reduced.sh", reduced["data"], "C1", RESULTS=str(reduced["results"]))
    prepare, train, score = map(understood, (prepare, train, score))
    assert (reduced["run"] / "train.de").read_text() == "de 1\nde 7\n"
    assert prepare.train == [[f"{reduced['run']}/train.en", f"{reduced['run']}/train.de"]]
    assert prepare.dev == score.test == [f"{reduced['data']}/dev.en", f"{reduced['data']}/dev.de"]
    assert (train.recipe, train.data, train.threads, train.seed) == ("table3_C1", prepare.output, 1, 0)
    recipe = divide_widths(load_recipe(train.recipe, train.changes), train.divide_widths)
    assert recipe.checkpoint_interval == (1, "epochs")
    # The best epoch and the ten without gain.
    assert recipe.num_averaged_checkpoints == recipe.patience + 1 == 11
    assert score.model == f"{reduced['run']}/C1/checkpoints/step-00000009"
    assert [words[:3] for words in tables] == [
        ["python", f"scripts/{name}_table3.py", str(reduced["results"])] for name in ("print", "plot")
    ]
    assert (reduced["results"] / "C1" / "log.jsonl").read_text() == "log.jsonl of C1"
    assert (reduced["results"] / "C1" / "dev_scores.txt").read_text().startswith("processor ")


def test_reduced_rows_stand_to_base_as_in_the_paper(record, reduced):
    commands = record("table3_reduced.sh", reduced["data"], RESULTS=str(reduced["results"]))
    trainings = [understood(command) for command in commands if command[1] == "train"]
    assert {Path(train.output).name for train in trainings} == REDUCED_ROWS
    ours = {
        train.recipe: divide_widths(load_recipe(train.recipe, train.changes), train.divide_widths)
        for train in trainings
    }
    assert ours["table3_A1"].model["num_heads"] == 1
    for row, recipe in ours.items():
        ratios = [
            [size / usual for size, usual in zip(sizes_of(of_row), sizes_of(base), strict=True)]
            for of_row, base in ((recipe, ours["table3_base"]), (RECIPES[row], RECIPES["table3_base"]))
        ]
        assert row == "table3_A1" or ratios[0] == ratios[1]  # A1 has one head in the paper, too
        assert others_of(recipe) == others_of(RECIPES[row])


def sizes_of(recipe):
    config = VaswaniConfig(**recipe.model)
    names = ("encoder_layers", "decoder_layers", "d_model", "d_ff", "num_heads", "d_k", "d_v")
    return [getattr(config, name) for name in names]


def others_of(recipe):
    config = VaswaniConfig(**recipe.model)
    return config.dropout, config.label_smoothing, config.position_embedding_type


def test_a_reduced_row_whose_results_are_there_is_not_trained_again(record, reduced):
    (reduced["results"] / "C1").mkdir(parents=True)
    (reduced["results"] / "C1" / "dev_scores.txt").touch()
    commands = record("table3_reduced.sh", reduced["data"], "C1 D1", RESULTS=str(reduced["results"]))
    assert [command[3] for command in commands if command[1] == "train"] == ["table3_D1"]


def test_sigterm_reaches_the_trainings_of_both_reduced_rows(record, reduced, tmp_path):
    training = tmp_path / "stubs" / "vaswani"
    training.write_text(
        '#!/bin/sh\n[ "$1" = train ] || exit 0\n'
        "trap 'echo saved; exit 75' TERM\n"
        'echo begun; while kill -0 "$WATCH"; do sleep 0.1; done\n'
    )
    environment = os.environ | {"PATH": f"{training.parent}{os.pathsep}{os.environ['PATH']}", "WATCH": str(os.getpid())}
    environment |= {"RUN": str(reduced["run"]), "RESULTS": str(reduced["results"])}
    command = ["bash", str(SCRIPTS / "table3_reduced.sh"), str(reduced["data"]), "C1 D1"]
    logs = [reduced["run"] / f"{row}.log" for row in ("C1", "D1")]
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as script:
        while not all(log.exists() and log.read_text() for log in logs):
            assert script.poll() is None
            time.sleep(0.02)
        script.terminate()
        _, errors = script.communicate()
    assert (script.returncode, errors) == (75, b"stopped; the same command goes on\n")
    assert [log.read_text().splitlines()[-1] for log in logs] == ["saved"] * 2
    assert not reduced["results"].exists()


@pytest.fixture
def print_table3(monkeypatch):
    """The program, to be called with its argument."""

    def run(folder):
        monkeypatch.setattr(sys, "argv", ["print_table3.py", str(folder)])
        table3.main()

    assert table3.PAPER.keys() == TABLE_3.keys()
    return run


def write_row(folder, row, perplexity, bleu, *, warmup_updates=4_000, **model):
    """What the training and the scoring of a row leave behind; its second epoch is the best."""
    (folder / row).mkdir()
    description = {
        "recipe": {"num_updates": 100_000, "warmup_updates": warmup_updates, "model": model},
        "data": "f00d",
        "mixed_precision": "bf16",
        "num_parameters": 27_890_000,
    }
    (folder / row / "recipe.json").write_text(json.dumps(description))
    curve = [
        {"update": 7 * epoch, "epoch": epoch, "dev_perplexity": perplexity + (epoch - 2) ** 2} for epoch in (1, 2, 3)
    ]
    log = [curve[0], {"update": 10, "loss": 3.0, "seconds": 1.0, "target_tokens_per_second": 9.0}, *curve[1:]]
    (folder / row / "log.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in log))
    (folder / row / "dev_scores.txt").write_text(
        "BLEU 9.99  nrefs:1|tok:13a\n"
        f"BLEU, tokenised, compounds split as in the paper {bleu:.2f}  nrefs:1|tok:split\n"
        f"perplexity {perplexity:.3f} per sub-word\nsearch num_beams:4\nprocessor Z80, bfloat16 by float32\n"
    )


def write_bases(folder):
    """Base with three seeds: perplexity 10 within 2 %, BLEU 20 within 0.5."""
    for name, perplexity, bleu in (("base", 9.9, 20.0), ("base_seed1", 10.1, 19.75), ("base_seed2", 10.0, 20.25)):
        write_row(folder, name, perplexity, bleu)


def test_the_table_stands_beside_the_paper_s(print_table3, tmp_path, capsys):
    write_row(tmp_path, "C4", 70.5, 3.14159, d_model=64, d_ff=512, d_k=8, d_v=8)
    write_row(tmp_path, "base", 5.0123, 25.7777, d_model=128, d_ff=512, d_k=16, d_v=16)
    print_table3(tmp_path)
    lines = capsys.readouterr().out.splitlines()
    sizes = "6 | 128 | 512 | 8 | 16 | 16 | 0.1 | 0.1 | sinusoidal"
    assert lines[2:4] == [
        f"| base | {sizes} | 3 | 2 | 6.01 | 5.01 | 4.92 | 25.8 | 25.8 | 27.9 | 65 |",
        "| C4 |  | 64 |  |  | 8 | 8 |  |  |  | 3 | 2 | 71.50 | 70.50 | 5.75 | 3.1 | 24.5 | 27.9 | 28 |",
    ]
    assert {line.count("|") for line in lines[:4]} == {20}
    assert "compounds split as in the paper: nrefs:1|tok:split" in lines[5]
    assert lines[5].endswith("Precision and processor, with rows: bf16, Z80, bfloat16 by float32 (2)")


# The paper's rows against its base: D1 has both worse, C5 both better, C3 a better perplexity and a worse BLEU, E none.
@pytest.mark.parametrize(
    ("row", "perplexity", "bleu", "expected"),
    [
        ("D1", 10.21, 19.4, "| D1 | +2.1 % | +17.3 % | agrees | -0.60 | -1.2 | agrees |"),
        ("D1", 9.7, 20.6, "| D1 | -3.0 % | +17.3 % | does not agree | +0.60 | -1.2 | does not agree |"),
        ("D1", 10.19, 19.6, "| D1 | +1.9 % | +17.3 % | too close to tell | -0.40 | -1.2 | too close to tell |"),
        ("C5", 9.0, 25.0, "| C5 | -10.0 % | -5.3 % | agrees | +5.00 | +0.2 | agrees |"),
        ("C3", 9.0, 25.0, "| C3 | -10.0 % | -0.8 % | agrees | +5.00 | -0.3 | does not agree |"),
        ("E", 10.1, 20.1, "| E | +1.0 % | +0.0 % | agrees | +0.10 | -0.1 | agrees |"),
        ("E", 12.0, 20.1, "| E | +20.0 % | +0.0 % | does not agree | +0.10 | -0.1 | agrees |"),
    ],
)
def test_a_row_s_way_from_base_is_held_against_the_paper_s_and_the_spread_of_seeds(
    print_table3, tmp_path, capsys, row, perplexity, bleu, expected
):
    write_bases(tmp_path)
    write_row(tmp_path, row, perplexity, bleu)
    print_table3(tmp_path)
    *_, moves, _, legend = capsys.readouterr().out.splitlines()
    assert moves == expected
    assert legend.startswith(
        "Base, 3 seeds: PPL 10.00 within 2.0 %, BLEU 20.00 within 0.50, from the least to the greatest"
    )


def test_other_trainings_of_base_have_lines_of_their_own_and_are_not_compared_with_it(print_table3, tmp_path, capsys):
    write_bases(tmp_path)
    write_row(tmp_path, "C1", 11.0, 19.0)
    print_table3(tmp_path)
    scored, _, moves, *_ = capsys.readouterr().out.split("\n\n")
    names = [[line.split(" | ")[0] for line in table.splitlines()[2:]] for table in (scored, moves)]
    assert names == [["| base", "| base_seed1", "| base_seed2", "| C1"], ["| C1"]]


def test_rows_are_not_compared_with_base_until_its_spread_is_known(print_table3, tmp_path, capsys):
    write_row(tmp_path, "C4", 70.5, 3.1, d_model=64)
    for name in (None, "base"):
        if name:
            write_row(tmp_path, name, 10.0, 20.0)
        print_table3(tmp_path)
        *table, last = capsys.readouterr().out.splitlines()
        assert any(line.startswith("| C4 | ") for line in table)
        assert last.startswith("No row is compared with base: that takes base of another seed too (base_seed1)")


def test_rows_that_were_not_trained_alike_are_refused(print_table3, tmp_path, capsys):
    write_row(tmp_path, "base", 10.0, 20.0)
    write_row(tmp_path, "E", 10.0, 20.0, warmup_updates=999)
    with pytest.raises(SystemExit):
        print_table3(tmp_path)
    assert 'E and base were not trained alike: {"data": "f00d", "warmup_updates": 999}' in capsys.readouterr().err


def test_a_score_of_before_is_named_with_what_to_do(print_table3, tmp_path, capsys):
    write_row(tmp_path, "E", 10.0, 20.0)
    (tmp_path / "E" / "dev_scores.txt").write_text("BLEU 9.99  nrefs:1|tok:13a\nperplexity 5.003 per sub-word\n")
    with pytest.raises(SystemExit):
        print_table3(tmp_path)
    assert "remove it and score this run again with scripts/table3.sh" in capsys.readouterr().err


def test_a_table_without_rows_is_refused(print_table3, tmp_path, capsys):
    with pytest.raises(SystemExit):
        print_table3(tmp_path)
    assert "holds no row with a dev_scores.txt; run scripts/table3.sh first" in capsys.readouterr().err


def test_every_row_has_a_curve_beside_base_s(tmp_path):
    write_bases(tmp_path)
    for row in ("A1", "C1", "D1", "big"):
        write_row(tmp_path, row, 12.0, 18.0)
    text = plot_table3.draw(table3.read_rows(tmp_path), tmp_path / "curves.svg").read_text(encoding="utf-8")
    assert {name: text.count(f">{name}<") for name in ("base", "base_seed2", "A1", "C1", "D1", "big", "E")} == {
        "base": 4,
        **dict.fromkeys(("base_seed2", "A1", "C1", "D1", "big"), 1),
        "E": 0,
    }


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
        write_parquet(data, split, generate_pairs(split=split.replace("validation", "dev"), num_pairs=num_pairs))
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
