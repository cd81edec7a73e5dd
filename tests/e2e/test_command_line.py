"""The commands work from text to BLEU, and their errors are one line each."""

import os
import re
import shlex
import signal
import subprocess
import sys
from unittest import mock

import pytest
import torch
from shortcuts import vaswani, write_lines
from tiny_training import TINY, read_log

from vaswani_transformer import cli, loading, memory
from vaswani_transformer.commands import COMMANDS
from vaswani_transformer.training.log import Log
from vaswani_transformer.training.recipes import RECIPES, Recipe, model_defaults, replace

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"]


def sentences(count, seed):
    """Return `count` sentences of three to six words. Equal seeds give equal sentences."""
    state, lines = seed, []
    for _ in range(count):
        line = []
        for _ in range(3 + state % 4):
            state = (1103515245 * state + 12345) % 2**31
            line.append(WORDS[(state >> 16) % len(WORDS)])
        lines.append(" ".join(line))
    return lines


@pytest.fixture(scope="module")
def trained_folder(tmp_path_factory):
    """Return a folder with text, prepared data and a run. The model of the run reverses the words of a sentence."""
    folder = tmp_path_factory.mktemp("trained_folder")
    RECIPES["reverse"] = replace(
        TINY,
        model=TINY.model | {"d_model": 48, "d_ff": 96, "dropout": 0.0},
        tokens_per_batch=1_200,
        num_updates=500,
        warmup_updates=100,
        lr_scale=1.2,
        checkpoint_interval=(140, "updates"),
    )
    train = sentences(3_000, seed=1)
    seen = set(train)
    held_out = [line for line in sentences(200, seed=7) if line not in seen][:60]
    for name, lines in (("train", train), ("dev", held_out)):
        write_lines(folder / f"{name}.en", lines)
        write_lines(folder / f"{name}.de", (" ".join(reversed(line.split())) for line in lines))
    files = f"--train {folder}/train.en {folder}/train.de --dev {folder}/dev.en {folder}/dev.de"
    vaswani(f"prepare --recipe reverse {files} --output {folder}/data")
    vaswani(f"train --recipe reverse --data {folder}/data --output {folder}/run")
    del RECIPES["reverse"]
    return folder


def run_module(command, text):
    arguments = [sys.executable, "-m", "vaswani_transformer", *command.split()]
    return subprocess.run(arguments, input=text, capture_output=True, encoding="utf-8", check=False)


@pytest.mark.slow
def test_a_model_learns_to_write_backwards_and_is_scored(trained_folder, output_of):
    test = f"{trained_folder}/dev.en {trained_folder}/dev.de"
    printed = output_of(f"evaluate --model {trained_folder}/run --test {test}")
    assert float(printed.split()[1]) > 90
    assert "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:" in printed
    assert "search num_beams:4|length_penalty:0.6|length_penalty_type:gnmt|max_length_offset:50" in printed


@pytest.mark.slow
@pytest.mark.parametrize("streams", ["", "--input - --output -"])
def test_standard_input_is_translated_with_a_warning_about_long_sentences(trained_folder, streams):
    text = "alpha beta\n" + "alpha " * 400 + "\n"
    done = run_module(f"translate --model {trained_folder}/run {streams}", text)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 2
    assert "sentences longer than the longest in training (256 tokens): 1." in done.stderr


@pytest.mark.slow
def test_a_dash_means_standard_input_for_at_most_one_of_the_texts(trained_folder):
    sources, targets = ((trained_folder / name).read_text() for name in ("dev.en", "dev.de"))
    score = f"score --model {trained_folder}/run --source"
    found = run_module(f"{score} - --target {trained_folder}/dev.de", sources).stdout
    assert found == run_module(f"{score} {trained_folder}/dev.en --target -", targets).stdout
    assert found.count("\n") == sources.count("\n")
    assert "but can be read only once" in run_module(f"{score} - --target -", sources).stderr
    done = run_module(f"evaluate --hypotheses - --references {trained_folder}/dev.de", targets)
    assert done.stdout.startswith("BLEU 100.00 ")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_training_with_status_75_and_the_same_command_continues(
    trained_folder, tmp_path, monkeypatch, capsys, number
):
    files = f"--data {trained_folder}/data --output {tmp_path}"
    command = f"train --recipe phrasebook {files} --num_updates 30 --log_interval 1"

    def write_and_ask_to_stop(log, line, **facts):
        monkeypatch.undo()
        log.write(line, **facts)
        os.kill(os.getpid(), number)

    monkeypatch.setattr(Log, "write", write_and_ask_to_stop)
    vaswani(command, status=75)
    assert "saved; the same command continues from there" in capsys.readouterr().err
    vaswani(command)
    assert "resuming after update" in capsys.readouterr().err
    assert [line["update"] for line in read_log(tmp_path) if "lr" in line] == list(range(1, 31))


@pytest.mark.slow
def test_attention_pictures_are_written(trained_folder, tmp_path, output_of):
    command = f"attention --model {trained_folder}/run --source 'alpha beta gamma' --output"
    assert f"{tmp_path}/maps/attention.html" in output_of(f"{command} {tmp_path}/maps")
    names = {*os.listdir(tmp_path / "maps")}
    assert {"attention.html", "attention_figure3.svg", "attention_figure3.png"} <= names
    assert any(re.fullmatch(r"attention_alignment_layer1_head[1-4]\.svg", name) for name in names)
    output_of(f"{command} {tmp_path}/one --kind cross")
    assert {*os.listdir(tmp_path / "one")} == {name for name in names if "alignment" in name} | {"attention.html"}
    output_of(f"{command} {tmp_path}/png --word beta --format png --dpi 20")
    assert '"heads": [0, 1, 2, 3], "word": 1}' in (tmp_path / "png/attention.html").read_text()
    assert not [*(tmp_path / "png").glob("*.svg")]


@pytest.mark.slow
def test_the_heads_that_align_a_reversed_sentence_are_found(trained_folder, output_of):
    printed = output_of(f"heads --model {trained_folder}/run --source {trained_folder}/dev.en")
    header, *rows = printed.split("Encoder-decoder attention: score")[1].splitlines()[2:]
    names = [*re.split(r" {2,}", header.strip())]
    cells = [dict(zip(names, re.split(r" {2,}", row)[1:], strict=True)) for row in rows if row.startswith("layer")]
    assert any(row["alignment"].startswith("*") for row in cells)
    assert not any(row["diagonal"].startswith("*") for row in cells)


@pytest.mark.parametrize(
    ("endings", "options", "languages"),
    [(("de", "fr"), "--target_language en", "de to en"), (("en", "txt"), "--target_language fr", "en to fr")],
)
def test_the_suffixes_of_text_files_name_the_languages(tmp_path, output_of, endings, options, languages):
    train, dev = ([tmp_path / f"{name}.{ending}" for ending in endings] for name in ("train", "dev"))
    for path in (*train, *dev):
        path.write_text(path.stem)
    printed = output_of(f"prepare --output {tmp_path}/data {options} --train", *train, "--dev", *dev)
    assert printed.splitlines()[-1].startswith(f"{languages}: vocabulary of ")


def test_prepare_names_a_recipe_that_suits_the_number_of_pairs_unless_one_is_given(tmp_path, output_of):
    write_lines(tmp_path / "a", WORDS)
    write_lines(tmp_path / "b", [*WORDS, "iota"])
    files = f"--train {tmp_path}/b {tmp_path}/b --dev {tmp_path}/a {tmp_path}/a --output {tmp_path}"
    hint = "--recipe multi30k_tiny for up to 100,000 pairs"
    assert hint in output_of(f"prepare {files}/data")
    assert hint not in output_of(f"prepare {files}/other --recipe base_en_de")


@pytest.mark.parametrize(
    ("typed", "advice"),
    [
        ("translate --model m --beam 5", "; did you mean --num_beams?"),
        ("train --data d --output r --patience 7", "; did you mean --set patience=7?"),
        ("train --data d --output r --label-smoothing=0.2", "; did you mean --set model.label_smoothing=0.2?"),
    ],
)
def test_the_error_about_an_unknown_option_says_what_to_give_instead(capsys, typed, advice):
    with pytest.raises(SystemExit):
        vaswani(typed)
    assert f"unrecognized arguments: {typed[typed.rindex(' --') + 1 :]}{advice}" in capsys.readouterr().err


def test_all_fields_of_recipes_and_models_are_found_for_this_error():
    for prefix, names in {"": Recipe.__annotations__, "model.": model_defaults()}.items():
        for name in names.keys() - {"model", "model_type"}:
            assert cli._advise([f"--{name}", "1"], ["--set"]) == f"; did you mean --set {prefix}{name}=1?"


def test_a_mistyped_command_gets_a_suggestion(capsys):
    with pytest.raises(SystemExit, match="2"):
        vaswani("translte --model m")
    assert "there is no command 'translte'; did you mean 'translate'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    "option",
    [
        *("prepare --vocab_size", "prepare --num_pairs", "evaluate --num_pairs", "average --last"),
        *(f"train --{name}" for name in ("num_updates", "divide_widths", "accumulation_steps", "log_interval")),
    ],
)
def test_an_option_that_counts_something_refuses_zero(option, capsys):
    command, name = option.split()
    with pytest.raises(SystemExit, match="2"):
        vaswani(f"{option} 0")
    expected = f"vaswani {command}: error: argument {name}: expected a whole number from 1 to "
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (OSError("no connection\nto the Hub\n"), "no connection to the Hub"),
        (KeyError("x"), "KeyError: 'x' (vaswani --debug convert ... shows where in the code)"),
    ],
)
def test_an_error_is_one_line_even_if_its_message_has_several(monkeypatch, error_of, error, line):
    monkeypatch.setattr(loading, "load_translator", mock.Mock(side_effect=error))
    assert error_of("convert --to marian --model x --output no/such/folder") == f"vaswani convert: {line}\n"


def test_a_lack_of_memory_prints_one_line_with_advice(monkeypatch, error_of):
    monkeypatch.setattr(loading, "load", lambda *_, **__: torch.empty(10**15))
    advice = "a smaller --tokens_per_batch \\(in training a larger --accumulation_steps\\), or shorter sentences"
    message = rf"vaswani translate: out of memory \(.*\): give {advice}\.\n"
    assert re.fullmatch(message, error_of("translate --model x"))


@pytest.mark.parametrize(
    "command",
    [
        "translate --input read --output link",
        "parse --input read --output read",
        "parse --gold read --output link",
        "evaluate --test read read --translations link",
        "evaluate --test other other --references read --json hard",
        "evaluate --test other other --table new --json ./new",
        "evaluate --test other other --json model.spm",
        "evaluate --test read.partial other --json read",
        "align --source other --target other --gold read --output link",
    ],
)
def test_an_input_file_is_never_overwritten(tmp_path, monkeypatch, error_of, command):
    monkeypatch.chdir(tmp_path)
    for name in ("read", "other", "read.partial", "config.json"):
        (tmp_path / name).write_text("a dog\n")
    (tmp_path / "link").symlink_to("read")
    (tmp_path / "hard").hardlink_to("read")
    message = (
        "is another input or output of this command, or a part of one, and would be replaced: name another output."
    )
    assert message in error_of(f"{command} --model no/such/model")
    assert (tmp_path / "read").read_text() == "a dog\n"
    # A device may be both input and output.
    assert message not in error_of("translate --input /dev/null --output /dev/null --model no/such/model")


@pytest.mark.parametrize(
    ("redirection", "status"),
    [("<&-", 1), (">&-", 1), ("2>&-", 0), ("2>/dev/full", 0)],
)
def test_closed_input_or_output_is_an_error_but_closed_or_full_stderr_is_not(
    build_translator, tmp_path, redirection, status
):
    # The run has no final model, so a message on standard error says that the checkpoint is used.
    checkpoint = tmp_path / "checkpoints/step-00000001"
    build_translator(["a dog runs"] * 3, folder=checkpoint)
    (checkpoint / "COMPLETE").write_text('{"files": {}}')
    command = f"'{sys.executable}' -m vaswani_transformer translate --model {tmp_path} {redirection}"
    done = subprocess.run(["sh", "-c", command], input="\n", capture_output=True, text=True, check=False)
    assert done.returncode == status
    message = "standard input or output is closed, but translate uses it: open it, or name a file."
    assert (message in done.stderr) == bool(status)
    assert done.stdout == ("" if status else "\n")


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_the_examples_in_the_help_of_every_command_are_valid(command, capsys):
    with pytest.raises(SystemExit, match="0"):
        vaswani(f"{command} --help")
    lines = re.findall(r"^ *vaswani ((?:.*\\\n)*.*)", capsys.readouterr().out, re.MULTILINE)
    assert any(line == "recipes" or line.startswith(f"{command} --" if command else "translate --") for line in lines)
    for line in lines:
        words = shlex.split(line.replace("\\\n", "").partition(" > ")[0])
        assert cli.build_parser().parse_args(words).command == words[0]


def test_a_command_keeps_few_compiled_kernels_and_reuses_freed_memory(monkeypatch, tmp_path):
    calls = []
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda _: mock.Mock(mallopt=lambda *call: calls.append(call)))
    monkeypatch.delenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", raising=False)
    monkeypatch.setenv("LRU_CACHE_CAPACITY", "7")
    vaswani(f"cost --run {tmp_path}", status=1)
    assert os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] == "192"
    assert os.environ["LRU_CACHE_CAPACITY"] == "7"
    assert calls == [(-1, 256 * 2**20), (-3, 32 * 2**20)]  # -1 is M_TRIM_THRESHOLD, -3 is M_MMAP_THRESHOLD
