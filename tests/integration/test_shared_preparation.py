"""`vaswani prepare` shared out over workers and processes: the bytes of one process, also after a kill."""

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import psutil
import pytest

from vaswani_transformer import cli
from vaswani_transformer.commands import prepare as command
from vaswani_transformer.data.filtering import PairFilter
from vaswani_transformer.data.preparation import Corpus, prepare

PAIRS_PER_PART = 7
PAIRS = [(f"a dog runs {number % 48} times </s>", f"ein hund läuft  {number % 48} mal") for number in range(64)]
CORPORA = [Corpus(lambda: iter(PAIRS[:40]), weight=2), Corpus(lambda: iter(PAIRS[40:]))]
SETTINGS = {"vocab_size": 280, "pairs_per_part": PAIRS_PER_PART, "pair_filter": PairFilter(drop_duplicates=True)}
PROGRAM = f"""
import signal, sys, time
from functools import partial

def slowly(write_parts, blocks, *args, **options):
    write_parts((time.sleep(0.5) or block for block in blocks), *args, **options)

if __name__ == "__main__":
    # A shell that starts the tests in its background makes all below it ignore Ctrl+C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from vaswani_transformer import cli
    from vaswani_transformer.commands import prepare
    prepare.prepare = partial(prepare.prepare, pairs_per_part={PAIRS_PER_PART})
    if sys.argv[1] == "slowly":
        from vaswani_transformer.data import preparation
        preparation.write_parts = partial(slowly, preparation.write_parts)
    raise SystemExit(cli.main(sys.argv[2:]))
"""


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "lock" and not path.name.endswith(".partial")
    }


@pytest.fixture(scope="module")
def by_one(tmp_path_factory):
    """The files of CORPORA prepared by one process."""
    folder = tmp_path_factory.mktemp("by_one")
    prepare(CORPORA, lambda: PAIRS[:9], folder, **SETTINGS)
    return files_of(folder)


def test_workers_write_what_one_process_writes_and_say_a_full_disk(by_one, little_room, tmp_path):
    prepare(CORPORA, lambda: PAIRS[:9], tmp_path, **SETTINGS, workers=2)
    assert files_of(tmp_path) == by_one
    (tmp_path / "train" / "part-00001.arrow").unlink()
    (tmp_path / "preparation.json").unlink()
    with little_room(100), pytest.raises(OSError, match=r"File too large: '.*/train/part-00001\.arrow'"):
        prepare(CORPORA, lambda: PAIRS[:9], tmp_path, **SETTINGS, workers=2)
    assert not multiprocessing.active_children()
    prepare(CORPORA, lambda: PAIRS[:9], tmp_path, **SETTINGS)
    assert files_of(tmp_path) == by_one


def test_a_killed_worker_is_said_and_the_work_goes_on(by_one, tmp_path):
    def kill_workers_and_read():
        for worker in multiprocessing.active_children():
            worker.kill()
        return iter(PAIRS[40:])

    corpora = [CORPORA[0], Corpus(kill_workers_and_read)]
    with pytest.raises(ChildProcessError, match=r"one of 2 workers was killed, .*Give the same command again"):
        prepare(corpora, lambda: PAIRS[:9], tmp_path, **SETTINGS, workers=2)
    assert not multiprocessing.active_children()
    prepare(CORPORA, lambda: PAIRS[:9], tmp_path, **SETTINGS)
    assert files_of(tmp_path) == by_one


@pytest.fixture
def arguments(tmp_path):
    """Arguments of the command that prepares PAIRS into a folder."""
    for name, pairs in (("text", PAIRS), ("dev", PAIRS[:9])):
        for language, sentences in zip(("en", "de"), zip(*pairs, strict=True), strict=True):
            (tmp_path / f"{name}.{language}").write_text("\n".join(sentences) + "\n", encoding="utf-8")
    texts = [
        [f"--{option}", *(f"{tmp_path}/{name}.{language}" for language in ("en", "de"))]
        for option, name in (("train", "text"), ("dev", "dev"))
    ]
    return ["prepare", *texts[0], *texts[1], "--vocab_size", "280", "--drop_duplicates", "--output"]


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return str(path)


def prepare_alone(arguments, folder, monkeypatch):
    monkeypatch.setattr(command, "prepare", partial(prepare, pairs_per_part=PAIRS_PER_PART))
    assert cli.main([*arguments, str(folder)]) == 0
    return files_of(folder)


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT])
def test_workers_end_with_a_stopped_command_and_one_process_goes_on(arguments, program, tmp_path, monkeypatch, sent):
    folder = tmp_path / "stopped"
    process = subprocess.Popen([sys.executable, program, "slowly", *arguments, str(folder), "--workers", "2"])
    while process.poll() is None and not list(folder.glob("train/part-*.arrow")):
        time.sleep(0.01)
    family = psutil.Process(process.pid).children(recursive=True)
    assert len(family) >= 2
    process.send_signal(sent)
    assert process.wait(timeout=600) != 0
    assert not psutil.wait_procs(family, timeout=600)[1]
    assert not (folder / "preparation.json").exists()
    assert prepare_alone(arguments, folder, monkeypatch) == prepare_alone(arguments, tmp_path / "alone", monkeypatch)


@pytest.mark.slow
def test_processes_of_a_launcher_write_what_one_writes(arguments, program, tmp_path, monkeypatch):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", program, "fast"]
    result = subprocess.run(
        [*torchrun, *arguments, str(tmp_path / "shared")],
        env=os.environ | {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert result.returncode == 0, result.stderr
    assert len(re.findall("train: read 64 pairs", result.stdout)) == 1
    assert files_of(tmp_path / "shared") == prepare_alone(arguments, tmp_path / "alone", monkeypatch)


def test_a_folder_that_a_process_does_not_see_is_refused(tmp_path):
    class Second:
        is_main_process, process_index, num_processes = False, 1, 2

        def wait_for_everyone(self):
            pass

    with pytest.raises(FileNotFoundError, match=r"cannot be seen by all.*an output folder that they share"):
        prepare(CORPORA, lambda: PAIRS[:9], tmp_path / "unseen", **SETTINGS, processes=Second())
