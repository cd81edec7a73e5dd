"""`vaswani translate` translates files. It continues after a kill, and several processes may share the work."""

import gzip
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from shortcuts import vaswani, write_lines

from vaswani_transformer import VaswaniConfig, VaswaniForConditionalGeneration, cli
from vaswani_transformer.commands.translate import OF_OUTPUT
from vaswani_transformer.translation import files as file_translation
from vaswani_transformer.translation.translator import Translator

WORDS = ["the", "dog", "cat", "runs", "sleeps", "far", "and", "away"]
SENTENCES = [" ".join(WORDS[(i * i + j) % 8] for j in range(3 * i % 7)) for i in range(90)]
# `translate` saves its work after each window of lines. A window has LEAST_LINES_PER_WINDOW (1 in these tests) or
# --tokens_per_batch lines, whichever is more: 20 here. So the 90 lines make four and a half windows.
SMALL = "--max_length_offset 2 --tokens_per_batch 20"
PROGRAM = """
import sys, time
from vaswani_transformer import cli
from vaswani_transformer.translation import files as file_translation
from vaswani_transformer.translation.translator import Translator

translate = Translator.translate
Translator.translate = lambda translator, batch: time.sleep({seconds}) or translate(translator, batch)
file_translation.LEAST_LINES_PER_WINDOW = 1
raise SystemExit(cli.main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory, build_translator):
    folder = tmp_path_factory.mktemp("model")
    build_translator(SENTENCES, folder=folder)
    return folder


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text"
    write_lines(path, SENTENCES)
    return path


@pytest.fixture(autouse=True)
def small_windows(monkeypatch):
    monkeypatch.setattr(file_translation, "LEAST_LINES_PER_WINDOW", 1)


def test_a_translation_does_not_continue_with_other_options_or_another_model(
    model_folder, text, tmp_path, monkeypatch, capsys
):
    files = f"--input {text} --output {tmp_path}/out {SMALL}"
    command = f"translate --model {model_folder} --ensemble {model_folder} {files}"
    with monkeypatch.context() as patch:  # The command fails, and leaves an unfinished translation behind.
        patch.setattr(Translator, "translate", None)
        vaswani(command, status=1)
    other = shutil.copytree(model_folder, tmp_path / "other")
    VaswaniForConditionalGeneration(VaswaniConfig.from_pretrained(model_folder)).save_pretrained(other)
    vaswani(f"translate --model {other} --ensemble {other} --num_beams 2 --scores {files}", status=1)
    models = r'ensemble was \[".*"\], is \[".*"\]; model was ".*", is ".*"'
    changes = f"begun with other settings: {models}; num_beams was not set, is 2; scores was false, is"
    assert re.search(changes, capsys.readouterr().err)
    vaswani(command)
    assert (tmp_path / "out").read_text().count("\n") == len(SENTENCES)


def test_compressed_files_and_pipes_give_the_same_translations(model_folder, text, tmp_path, output_of):
    command = f"translate --model {model_folder} {SMALL} --input"
    whole = output_of(f"{command} {text}")
    (tmp_path / "text.gz").write_bytes(gzip.compress(text.read_bytes()))
    assert output_of(f"{command} {tmp_path}/text.gz") == whole
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    writer = subprocess.Popen(["cp", text, fifo])
    output_of(f"{command} {fifo} --output {tmp_path}/piped")
    assert writer.wait() == 0
    assert (tmp_path / "piped").read_text() == whole


def test_each_option_that_changes_the_output_of_translate_is_compared_before_work_continues():
    options = vars(cli.build_parser().parse_args(["translate", "--model", "m"])).keys()
    compared_by_content = {"model", "ensemble", "import"}
    names_of_files = {"input", "output"}
    assert options - {"command", "debug", "module", "parser"} == {*OF_OUTPUT} | compared_by_content | names_of_files


def test_processes_cannot_share_a_pipe(model_folder, text, monkeypatch, error_of):
    monkeypatch.setattr(file_translation, "find_processes", lambda: SimpleNamespace(num_processes=2))
    error = error_of(f"translate --model {model_folder} --input {text}")
    assert "2 processes can share a file, but not a pipe: name files" in error


@pytest.mark.slow
def test_two_processes_continue_the_work_of_a_killed_process_and_write_the_same_file(
    model_folder, text, tmp_path, error_of
):
    command = f"translate --model {model_folder} --input {text} --nbest 2 --scores {SMALL} --output {tmp_path}"
    vaswani(f"{command}/whole")
    output = tmp_path / "out"
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(seconds=0.5))
    process = subprocess.Popen([sys.executable, program, *f"{command}/out".split()])
    first = tmp_path / "out.partial/lines-000000000001"
    while process.poll() is None and not first.exists():
        time.sleep(0.01)
    assert "another process writes in" in error_of(f"{command}/out")
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert not output.exists()
    first.write_text("damaged\n")  # this window must be translated again
    program.write_text(PROGRAM.format(seconds=0))
    torchrun = f"-m torch.distributed.run --standalone --nproc_per_node 2 {program} {command}/out"
    environment = os.environ | {"ACCELERATE_USE_CPU": "true"}
    subprocess.run([sys.executable, *torchrun.split()], env=environment, check=True, timeout=900)
    assert output.read_bytes() == (tmp_path / "whole").read_bytes()
    assert not (tmp_path / "out.partial").exists()
