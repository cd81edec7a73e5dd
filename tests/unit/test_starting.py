"""Imports: help and usage errors do not wait for torch, and the auto classes of transformers find the package."""

import os
import re
import subprocess
import sys
from importlib import metadata

import pytest

import vaswani_transformer
from vaswani_transformer import cli
from vaswani_transformer.commands import COMMANDS
from vaswani_transformer.commands.arguments import check_files

NAMES = list(COMMANDS)
ANSWER = """
import sys
import vaswani_cli
from vaswani_transformer import cli

for words in (["--help"], ["--version"], ["train", "--oops"], [], *([name, "--help"] for name in sys.argv[1:])):
    try:
        cli.main(words)
    except SystemExit:
        pass
    assert not {"torch", "transformers", "datasets", "numpy"} & sys.modules.keys(), words
sys.argv = ["vaswani", "--help"]
vaswani_cli.main()
"""
REFUSE_QUESTIONS = """
import builtins, sys
builtins.input = lambda *_: sys.exit("a question was asked")
"""
LOAD = """
for auto in (AutoConfig, AutoModel, AutoModelForSeq2SeqLM):
    print(type(auto.from_pretrained(sys.argv[1])).__qualname__)
AutoTokenizer.from_pretrained(sys.argv[1])
print(type(pipeline("translation", model=sys.argv[1])).__qualname__)
assert AutoModel.from_pretrained(sys.argv[1]).__class__ is vaswani_transformer.VaswaniModel
"""
OURS = "import vaswani_transformer\n"
THEIRS = "from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer, pipeline\n"


def run(*arguments: str, **options) -> subprocess.CompletedProcess:
    """Run Python with these arguments in a new process, and return the completed process."""
    return subprocess.run([sys.executable, *arguments], check=True, capture_output=True, text=True, **options)


def test_help_version_and_usage_errors_import_neither_torch_nor_transformers():
    assert "usage: vaswani [-h] [--version] [--debug] command ..." in run("-c", ANSWER, *NAMES).stdout


def test_help_needs_no_docstrings():
    assert "recipes" in run("-OO", "-m", "vaswani_transformer", "--help").stdout


def test_help_by_python_m_imports_no_torch_but_another_program_finds_the_public_names(tmp_path):
    done = run("-X", "importtime", "-m", "vaswani_transformer", "--help")
    assert "usage: vaswani" in done.stdout
    assert not re.search(r"\| +(torch|transformers|numpy)$", done.stderr, re.MULTILINE)
    # In the next run, the name of the package is only an argument of another program, which needs the public names.
    (tmp_path / "mine.py").write_text("import vaswani_transformer; print(vaswani_transformer.VaswaniConfig.__name__)")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "__init__.py").write_text("import mine")
    (tmp_path / "other" / "__main__.py").touch()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    assert run("-m", "other", "vaswani_transformer", env=environment).stdout == "VaswaniConfig\n"


@pytest.mark.parametrize("imports", [OURS + THEIRS, THEIRS + OURS], ids=["ours first", "theirs first"])
def test_auto_classes_find_our_classes_without_trust_remote_code(imports, build_translator, tmp_path):
    build_translator(["a dog runs"] * 3, folder=tmp_path)
    found = run("-c", REFUSE_QUESTIONS + imports + LOAD, str(tmp_path)).stdout.split()
    assert found == [
        "VaswaniConfig",
        "VaswaniModel",
        "VaswaniForConditionalGeneration",
        "TranslationPipeline",
    ]


def test_each_public_name_is_an_attribute_of_the_package():
    for name in vaswani_transformer.__all__:
        assert getattr(vaswani_transformer, name).__name__ == name
    with pytest.raises(AttributeError, match="module 'vaswani_transformer' has no attribute 'Transformer'"):
        vaswani_transformer.Transformer  # noqa: B018


def test_the_version_equals_the_version_of_the_installed_package(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"vaswani {vaswani_transformer.__version__}\n"
    assert vaswani_transformer.__version__ == metadata.version("vaswani-transformer")


def parse(command):
    return cli.build_parser().parse_args(command.split())


@pytest.mark.parametrize("name", ["a.srt", "a.HTML", "a.xlf.gz", "a.tsv", "a.md"])
@pytest.mark.parametrize(
    "command",
    [
        "translate --model a --input {0}",
        "evaluate --hypotheses {0} --references {0}",
        "evaluate --model a --test {0} {0}",
    ],
)
def test_a_warning_names_text_in_another_form_than_plain_lines(tmp_path, command, name):
    (tmp_path / name).touch()
    with pytest.warns(UserWarning, match=rf"each line of .*{name} is read as plain text"):
        check_files(parse(command.format(tmp_path / name)))


def test_a_text_with_the_ending_of_a_language_is_read_without_a_warning(tmp_path, recwarn):
    for name in ("a", "a.txt", "a.tr", "a.ms.gz", "html.es"):
        (tmp_path / name).touch()
        check_files(parse(f"translate --model a --input {tmp_path / name}"))
    assert not recwarn.list


PREPARE = "prepare --train a.csv --dev b.csv --output c"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("average --run a --output b --oops 3", "unrecognized arguments: --oops 3"),
        ("translate --model a Hello.", "unrecognized arguments: Hello.; text is read from --input"),
        ("prepare --output -", "argument --output: this output cannot be standard output"),
        (
            f"{PREPARE} --copy_words",
            "--copy_words is an option for trees: add --task parsing, or leave --copy_words out.",
        ),
        (f"{PREPARE} --weights 1 2", "--weights: expected one number for each --train (1 in all), got 2."),
    ],
)
def test_a_usage_error_shows_the_usage_of_its_command(command, message, capsys):
    name, *words = command.split()
    with pytest.raises(SystemExit) as stop:
        cli.main([name, *words])
    assert stop.value.code == 2
    usage, *_, error = capsys.readouterr().err.splitlines()
    assert usage.startswith(f"usage: vaswani {name} [-h]")
    assert error.startswith(f"vaswani {name}: error: {message}")
