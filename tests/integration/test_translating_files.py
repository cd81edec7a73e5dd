"""`vaswani translate` from file to file: killed, started again, and shared by processes."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from vaswani_transformer import VaswaniConfig, VaswaniForConditionalGeneration, cli
from vaswani_transformer.translation import files as file_translation
from vaswani_transformer.translation.translator import Translator

WORDS = ["the", "dog", "cat", "runs", "sleeps", "far", "and", "away"]
SENTENCES = [" ".join(WORDS[(i * i + j) % 8] for j in range(3 * i % 7)) for i in range(90)]
LINES_PER_WINDOW = 20  # four windows and a half
PROGRAM = """
import sys
from vaswani_transformer import cli
from vaswani_transformer.translation import files as file_translation

file_translation.LINES_PER_WINDOW = {lines_per_window}
raise SystemExit(cli.main(sys.argv[1:]))
"""
SLOWLY = """
import time
from vaswani_transformer.translation.translator import Translator

translate = Translator.translate
Translator.translate = lambda translator, batch: time.sleep(1) or translate(translator, batch)
"""


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory, build_translator):
    folder = tmp_path_factory.mktemp("model")
    for part in build_translator(SENTENCES):
        part.save_pretrained(folder)
    return folder


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text"
    path.write_text("".join(f"{sentence}\n" for sentence in SENTENCES))
    return path


@pytest.fixture(autouse=True)
def small_windows(monkeypatch):
    monkeypatch.setattr(file_translation, "LINES_PER_WINDOW", LINES_PER_WINDOW)


def arguments(model_folder, text, output, *more):
    files = ["--model", model_folder, "--input", text, "--output", output]
    return [*map(str, ["translate", *files, "--max_length_offset", 2, "--tokens_per_batch", 60, *more])]


def test_other_options_or_another_model_do_not_go_on(model_folder, text, tmp_path, monkeypatch, capsys):
    def die(translator, batch):
        raise MemoryError("no room")

    output = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(Translator, "translate", die)
        assert cli.main(arguments(model_folder, text, output)) == 1
    assert cli.main(arguments(model_folder, text, output, "--num_beams", "2", "--scores")) == 1
    assert "num_beams was null, is 2; scores was false, is true. Give what it was" in capsys.readouterr().err
    other_model = tmp_path / "other"
    VaswaniForConditionalGeneration(VaswaniConfig.from_pretrained(model_folder)).save_pretrained(other_model)
    for path in model_folder.glob("tokenizer*"):
        (other_model / path.name).write_bytes(path.read_bytes())
    assert cli.main(arguments(other_model, text, output)) == 1
    assert "out.partial holds work that was begun with another text or other settings: model was" in (
        capsys.readouterr().err
    )
    assert cli.main(arguments(model_folder, text, output)) == 0
    assert output.read_text().count("\n") == len(SENTENCES)


def test_a_compressed_file_is_read_for_standard_output_too(model_folder, text, tmp_path, capsys):
    packed = tmp_path / "text.gz"
    packed.write_bytes(gzip.compress(text.read_bytes()))
    assert cli.main(arguments(model_folder, text, tmp_path / "whole")) == 0
    capsys.readouterr()
    (command, *files), options = arguments(model_folder, packed, "-")[:5], arguments(model_folder, packed, "-")[7:]
    assert cli.main([command, *files, *options]) == 0
    assert capsys.readouterr().out == (tmp_path / "whole").read_text()


def test_the_text_itself_is_not_replaced(model_folder, text, capsys):
    before = text.read_bytes()
    assert cli.main(arguments(model_folder, text, text)) == 1
    assert "is the text to translate, and would be replaced: name another output." in capsys.readouterr().err
    assert text.read_bytes() == before


def test_processes_cannot_share_a_pipe(model_folder, text, monkeypatch, capsys):
    class Two:
        num_processes = 2

    monkeypatch.setattr("vaswani_transformer.commands.translate.find_processes", Two)
    assert cli.main(["translate", "--model", str(model_folder), "--input", str(text)]) == 1
    assert "2 processes can share a file, not a pipe: give --input and --output files." in capsys.readouterr().err


@pytest.mark.slow
def test_a_file_is_written_once_and_after_sigkill_the_same_command_goes_on(
    model_folder, text, tmp_path, monkeypatch, capsys
):
    assert cli.main(arguments(model_folder, text, tmp_path / "whole")) == 0
    output, log = tmp_path / "out", tmp_path / "out.partial" / "process-00000.log"
    program = SLOWLY + PROGRAM.format(lines_per_window=LINES_PER_WINDOW)
    process = subprocess.Popen([sys.executable, "-c", program, *arguments(model_folder, text, output)])
    while process.poll() is None and not (log.exists() and log.read_bytes().count(b"\n") > 4):
        time.sleep(0.01)
    assert cli.main(arguments(model_folder, text, output)) == 1
    assert f"process {process.pid} on host" in capsys.readouterr().err
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL

    records = [json.loads(line[9:]) for line in log.read_bytes().split(b"\n")[:-1]]
    num_finished = sum(len(record["lines"]) for record in records)
    translated, translate = [], Translator.translate
    monkeypatch.setattr(
        Translator, "translate", lambda self, batch: translated.extend(batch.rows) or translate(self, batch)
    )
    assert cli.main(arguments(model_folder, text, output)) == 0
    assert output.read_bytes() == (tmp_path / "whole").read_bytes()
    assert len(translated) == len(SENTENCES) - num_finished < len(SENTENCES)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_processes", "lines_per_window", "more"),
    [(2, 16_384, []), (3, LINES_PER_WINDOW, ["--nbest", "2", "--scores"])],
    ids=["batches of one window are dealt", "windows are dealt"],
)
def test_processes_write_what_one_writes(
    model_folder, text, tmp_path, monkeypatch, num_processes, lines_per_window, more
):
    monkeypatch.setattr(file_translation, "LINES_PER_WINDOW", lines_per_window)
    assert cli.main(arguments(model_folder, text, tmp_path / "one", *more)) == 0
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(lines_per_window=lines_per_window))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(num_processes)]
    subprocess.run(
        [*torchrun, str(program), *arguments(model_folder, text, tmp_path / "several", *more)],
        env=os.environ | {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"},
        check=True,
        timeout=900,
    )
    assert (tmp_path / "several").read_bytes() == (tmp_path / "one").read_bytes()
    assert not (tmp_path / "several.partial").exists()


def test_a_pipe_of_the_shell_is_translated_as_it_comes(model_folder, text, tmp_path):
    assert cli.main(arguments(model_folder, text, tmp_path / "whole")) == 0
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    writer = subprocess.Popen(["cp", str(text), str(fifo)])
    assert cli.main(arguments(model_folder, fifo, tmp_path / "piped")) == 0
    assert writer.wait() == 0
    assert (tmp_path / "piped").read_bytes() == (tmp_path / "whole").read_bytes()
