"""Every command answers bad input with one line on standard error."""

import io
import sys
from argparse import ArgumentTypeError
from unittest import mock

import pytest
from huggingface_hub.errors import HfHubHTTPError
from shortcuts import vaswani

from vaswani_transformer import cli, loading
from vaswani_transformer.bounds import SEARCH_BOUNDS, Number
from vaswani_transformer.training import recipes


@pytest.fixture
def working_folder(build_translator, tmp_path, monkeypatch):
    """Return the working directory, with a `model`, a `text`, an `empty` folder, and a link `loop` to itself."""
    build_translator(["a dog runs", "two cats sleep"] * 3, folder=tmp_path / "model")
    (tmp_path / "text").write_text("a dog\n")
    (tmp_path / "list").write_text('{"recipe": []}')
    (tmp_path / "deep").write_text("[" * 9_999)
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "empty").mkdir()
    (tmp_path / "runs/best").mkdir(parents=True)
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
        ("translate --model text", "text is a file; name the folder of a model"),
        ("convert --from marian --model empty --output y", "config.json"),
        ("convert --from fairseq --model model --output y", "model is a folder: name the checkpoint in it"),
        ("translate --model model/gone", "model/gone does not exist; name a model folder"),
        *((f"translate --model {name}", f"{name} does not exist; name") for name in ("./a/b", "~/a", "a/b:c", "a/b/c")),
        ("translate --model run/best", "run/best does not exist (did you mean runs/best?); name a model folder"),
        (f"{PREPARE} gone.en gone.de", "there is no file gone.en: name a text file"),
        ("translate --model model --input empty", "empty is a folder: name a text file"),
        (f"{PREPARE} ~nouser/x text", "~nouser/x"),
        (f"{PREPARE} model/config.json model", "model"),
        ("cost --recipe list", "list was not written by this version"),
        (f"{PREPARE} text text --recipe deep", "deep was not written by this version"),
        (f"{PREPARE} text text --set model.attention_window={10**25}", ""),
        ("evaluate --model model --test text text --tokenize ja-mecab", "Japanese"),
        ("train --data model --output run", "model"),
        ("average --run nowhere --output y", "nowhere has no recipe.json"),
        ("export --model model --format ctranslate2 --output text", "text is not an empty folder"),
    ],
)
def test_bad_input_prints_one_line_and_raises_with_the_option_debug(working_folder, error_of, command, message):
    error = error_of(command)
    assert error.startswith(f"vaswani {command.split()[0]}: ")
    assert message in error
    assert error.count("\n") == 1
    with pytest.raises(Exception, match=r"."):
        vaswani(f"--debug {command}")


@pytest.mark.parametrize(
    "command",
    [
        "convert --to marian --model model --output",
        "average --checkpoints model model --output",
        "push --model model --repo_id me/a --dry_run",
    ],
)
def test_after_a_full_disk_the_same_command_may_be_repeated_and_all_may_read_the_result(
    working_folder, error_of, little_room, command
):
    (working_folder / "model/README.md").write_text("mine")
    before = set(working_folder.iterdir())
    with little_room(12_000):
        error = error_of(f"{command} result")
    assert "result" in error
    assert "too large" in error
    assert error.count("\n") == 1
    assert set(working_folder.iterdir()) == before
    vaswani(f"{command} result")
    modes = {path.stat().st_mode for path in (working_folder / "text", *(working_folder / "result").iterdir())}
    assert len(modes) == 1  # that of any new file


def test_a_lost_connection_to_the_hub_is_told_as_such(working_folder, monkeypatch, error_of):
    httpx = sys.modules[HfHubHTTPError.__mro__[1].__module__]  # the client of huggingface_hub, httpx or httpx2
    lost = httpx.RemoteProtocolError("peer closed")
    monkeypatch.setattr(loading.AutoTokenizer, "from_pretrained", mock.Mock(side_effect=lost))
    assert "the connection was lost (RemoteProtocolError: peer closed): check the network" in error_of(TRANSLATE)


def test_an_option_has_the_same_bounds_as_the_field_of_this_name_in_recipes_or_generation_configs():
    for command in cli.build_parser()._subparsers._group_actions[0].choices.values():
        for action in command._actions:
            if isinstance(action.type, Number):
                for bounds in (recipes.BOUNDS, SEARCH_BOUNDS):
                    assert action.type == bounds.get(action.dest, action.type)


@pytest.mark.parametrize("number", [Number(1, 1_000), Number(-10.0, 10.0)], ids=str)
def test_a_number_out_of_bounds_or_of_another_type_is_refused(number):
    least, most = number.least, number.most
    assert [number(str(value)) for value in (least, most)] == [least, most]
    for text in (str(least - 1), str(most + 1), "nan", "inf", "9" * 5_000, "x", ""):
        with pytest.raises(ArgumentTypeError, match=r"^expected a (whole )?number from .* to .*, got '"):
            number(text)


def test_an_empty_path_for_the_output_is_a_usage_error(capsys):
    for command in ("prepare", "train", "translate", "parse", "export", "convert", "average", "card"):
        with pytest.raises(SystemExit, match="2"):
            vaswani(f"{command} --output ''")
        assert "argument --output: expected a path, got an empty text" in capsys.readouterr().err


def test_ctrl_c_during_imports_prints_one_line(monkeypatch, capsys):
    monkeypatch.setattr(cli, "import_module", mock.Mock(side_effect=KeyboardInterrupt))
    vaswani("translate --model model", status=130)
    assert capsys.readouterr().err == "vaswani translate: stopped by Ctrl+C\n"
