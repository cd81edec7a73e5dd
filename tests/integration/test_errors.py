"""Bad input ends in one line on standard error, in every command and for every kind of fault."""

import io
import sys
from pathlib import Path
from unittest import mock

import pytest

from vaswani_transformer import cli
from vaswani_transformer.bounds import BOUNDS
from vaswani_transformer.loading import load_translator


@pytest.fixture
def place(build_translator, tmp_path, monkeypatch):
    """The working directory: a model in `model`, and files of text."""
    build_translator(["a dog runs", "two cats sleep"] * 3, folder=tmp_path / "model")
    (tmp_path / "text").write_text("a dog\n")
    (tmp_path / "loop").symlink_to("loop")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a dog\n")))
    return tmp_path


TRANSLATE = "translate --model model --input text"
PREPARE = "prepare --dev text text --output data --train"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (f"{TRANSLATE} --output loop", "loop"),
        (f"{TRANSLATE} --output text/out", "text"),
        ("translate --model text", "text"),
        (f"{PREPARE} ~nouser/x text", "~nouser/x"),
        (f"{PREPARE} model/config.json model", "model"),
        (f"{PREPARE} text text --set model.attention_window={10**25}", ""),
        ("evaluate --model model --test text text --tokenize ja-mecab", "Japanese"),
        ("train --data model --output run", "model"),
        ("export --model model --format ctranslate2 --output text", "text is not empty"),
    ],
)
def test_bad_input_is_one_line_without_debug_and_a_traceback_with_it(place, capsys, command, message):
    assert cli.main(command.split()) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"vaswani {command.split()[0]}: ")
    assert message in error
    assert error.count("\n") == 1
    with pytest.raises(Exception, match=r"."):
        cli.main(["--debug", *command.split()])


def test_an_error_of_our_own_tells_its_class_and_how_to_find_its_place(place, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    assert cli.main(["translate", "--model", "model"]) == 1
    reason = "AttributeError: '_io.StringIO' object has no attribute 'buffer'"
    assert capsys.readouterr().err == f"vaswani translate: {reason} (vaswani --debug translate ... shows where)\n"


@pytest.mark.parametrize("name", BOUNDS)
def test_the_bounds_of_numbers_are_those_of_options(name, capsys):
    least, most = BOUNDS[name]
    parser = cli.build_parser()._subparsers._group_actions[0].choices.values()
    actions = [action for command in parser for action in command._actions if f"--{name}" in action.option_strings]
    for action in actions[:1]:  # some are of recipes only
        assert [action.type(str(value)) for value in (least, most)] == [least, most]
        for text in (str(least - 1), str(most + 1), "nan", "inf", "9" * 5_000, "x", ""):
            with pytest.raises(Exception, match=r"^expected a (whole )?number from .* to .*, got '"):
                action.type(text)


def test_an_empty_output_is_a_usage_error(capsys):
    for command in ("prepare", "train", "translate", "parse", "export", "convert", "average", "card"):
        with pytest.raises(SystemExit, match="2"):
            cli.main([command, "--output", ""])
        assert "argument --output: expected a path, got none" in capsys.readouterr().err


DAMAGES = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-2]),
    "a folder": lambda path: path.unlink() or path.mkdir(),
    "a dangling link": lambda path: path.unlink() or path.symlink_to("nothing"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_settings_of_the_search_are_refused(place, damage):
    load_translator("model")
    DAMAGES[damage](Path("model", "generation_config.json"))
    with pytest.raises((ValueError, OSError), match=r"generation_config\.json"):
        load_translator("model")


def test_ctrl_c_during_imports_is_one_line(monkeypatch, capsys):
    monkeypatch.setattr(cli, "import_module", mock.Mock(side_effect=KeyboardInterrupt))
    assert cli.main(["translate", "--model", "model"]) == 130
    assert capsys.readouterr().err == "vaswani translate: stopped by Ctrl+C\n"
