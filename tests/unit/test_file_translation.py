import io
import json
import os
import sys
import threading
from functools import partial
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import pytest
from tqdm import tqdm

from vaswani_transformer.translation import files as file_translation
from vaswani_transformer.translation.files import (
    find_processes,
    read_file_windows,
    read_windows,
    translate_file,
    translate_stream,
)
from vaswani_transformer.translation.translator import Batch, Hypothesis, format_lines

WORDS = ["".join(chr(97 + (i + j) % 26) for j in range(5 * i % 8)) + str(i) for i in range(20)]
SENTENCES = [*WORDS, "", "ä\u2028b", "z"]
EXPECTED = [sentence[::-1] for sentence in SENTENCES]
to_text = partial(format_lines, is_numbered=False, is_scored=False)


class Killed(BaseException):
    """What no handler of errors catches."""


class Reverser:
    """A translator that writes backwards, three sentences at a time, until its lives are used up."""

    def __init__(self, lives=1_000):
        self.lives = lives
        self.translated = []

    def plan(self, sentences):
        rows = sorted(range(len(sentences)), key=lambda row: -len(sentences[row]))
        parts = [rows[start : start + 3] for start in range(0, len(rows), 3)]
        return [Batch(part, [sentences[row] for row in part]) for part in parts]

    def translate(self, batch):
        self.lives -= 1
        if self.lives < 0:
            raise Killed
        self.translated += batch.ids
        return [[Hypothesis(sentence[::-1], -1.0)] for sentence in batch.ids]

    def __call__(self, sentences, *, on_batch):
        on_batch(len(sentences))
        return [[Hypothesis(sentence[::-1], -1.0), Hypothesis("?", -2.0)] for sentence in sentences]


class Processes:
    """Threads in the place of processes; `PartialState` as far as it is used."""

    def __init__(self, index, barrier):
        self.process_index, self.num_processes, self.barrier = index, barrier.parties, barrier
        self.is_main_process = index == 0

    def wait_for_everyone(self):
        self.barrier.wait()


@pytest.fixture(autouse=True)
def small_windows(monkeypatch):
    monkeypatch.setattr(file_translation, "LINES_PER_WINDOW", 7)  # of 23 lines: three and a rest of two
    monkeypatch.setattr(file_translation, "LINES_PER_STREAM_WINDOW", 4)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def paths(tmp_path):
    """The text, and where its translation goes."""
    (tmp_path / "text").write_text("".join(f"{line}\n" for line in SENTENCES), encoding="utf-8")
    return tmp_path / "text", tmp_path / "new" / "out"


def translate(translator, paths, *, to_lines=to_text, settings=(), index=0, barrier=None):
    processes = Processes(index, barrier or threading.Barrier(1))
    translate_file(translator, *paths, to_lines=to_lines, settings=dict(settings), processes=processes)


def translate_together(translators, paths):
    """A thread for each translator; what `translate_file` raises in one is raised here."""
    barrier, errors = threading.Barrier(len(translators)), []

    def work(index):
        try:
            translate(translators[index], paths, index=index, barrier=barrier)
        except threading.BrokenBarrierError:
            pass
        except BaseException as error:
            errors.append(error)
            barrier.abort()

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(translators))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def lines_of(path):
    text = path.read_text(encoding="utf-8")
    assert not text or text.endswith("\n")
    return text.removesuffix("\n").split("\n") if text else []


def finished_rows(folder):
    """Numbers of the lines that whole records of the logs in `folder` hold."""
    rows = set()
    for path in folder.glob("*.log"):
        for line in path.read_bytes().split(b"\n"):
            try:
                record = json.loads(line[9:])  # after the checksum
            except ValueError:
                continue
            rows |= {7 * record["window"] + int(row) for row in record["lines"]}
    return rows


def test_a_file_is_translated_line_for_line_and_nothing_else_is_left(paths):
    translate(Reverser(), paths)
    assert lines_of(paths[1]) == EXPECTED
    assert [path.name for path in paths[1].parent.iterdir()] == ["out"]


def test_an_empty_file_gives_an_empty_file(paths):
    paths[0].write_text("")
    translate(Reverser(), paths)
    assert paths[1].read_bytes() == b""


def test_lines_know_their_numbers_in_the_file(paths):
    translate(Reverser(), paths, to_lines=partial(format_lines, is_numbered=True, is_scored=True))
    assert lines_of(paths[1]) == [f"{number}\t-1.0000\t{text}" for number, text in enumerate(EXPECTED, start=1)]


@pytest.mark.parametrize("lives", range(9))
def test_what_was_finished_before_a_kill_is_not_translated_again_and_an_older_file_stays_till_then(paths, lives):
    paths[1].parent.mkdir()
    paths[1].write_text("old\n")
    stopped, second = Reverser(lives), Reverser()
    with pytest.raises(Killed):
        translate(stopped, paths)
    assert paths[1].read_text() == "old\n"
    translate(second, paths)
    assert lines_of(paths[1]) == EXPECTED
    assert len(stopped.translated) >= 2 * lives
    assert sorted(stopped.translated + second.translated) == sorted(SENTENCES)


def test_a_run_may_be_killed_again_and_again(paths):
    translated = []
    for _ in range(9):
        stopped = Reverser(lives=1)
        with pytest.raises(Killed):
            translate(stopped, paths)
        translated += stopped.translated
    last = Reverser(lives=1)
    translate(last, paths)
    assert lines_of(paths[1]) == EXPECTED
    assert sorted(translated + last.translated) == sorted(SENTENCES)


def test_a_log_that_ends_anywhere_loses_its_last_batch_only(paths):
    folder = paths[1].with_name("out.partial")
    with pytest.raises(Killed):
        translate(Reverser(lives=2), paths)
    log, settings = folder / "process-00000.log", (folder / "settings.json").read_bytes()
    whole = log.read_bytes()
    assert whole.count(b"\n") == 2
    for size in range(len(whole)):
        folder.mkdir(exist_ok=True)
        (folder / "settings.json").write_bytes(settings)
        log.write_bytes(whole[:size])
        finished = finished_rows(folder)
        translator = Reverser()
        translate(translator, paths)
        assert lines_of(paths[1]) == EXPECTED
        assert sorted(translator.translated) == sorted(SENTENCES[row] for row in range(23) if row not in finished)


def test_rubbish_in_a_log_is_passed_over(paths):
    with pytest.raises(Killed):
        translate(Reverser(lives=4), paths)
    log = paths[1].with_name("out.partial") / "process-00000.log"
    first, second, *rest = log.read_bytes().splitlines(keepends=True)
    odd = b'{}\n[1]\n{"window": "x", "lines": 3}\n' + first[:-3] + b"x" + first[-2:]
    log.write_bytes(odd + first + b"\0" * 40 + b"\xff" + second + b"\n" + b"".join(rest))
    translator = Reverser()
    translate(translator, paths)
    assert lines_of(paths[1]) == EXPECTED
    assert len(translator.translated) == 23 - 10 + 3


def run_and_die(paths, line_number):
    """In a child that ends, without any clean-up, before the n-th line of `file_translation` that is executed."""
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    executed = 0

    def count(frame, event, argument):
        nonlocal executed
        if frame.f_code.co_filename != file_translation.__file__:
            return None
        executed += event == "line"
        if executed == line_number:
            os._exit(9)
        return count

    sys.settrace(count)
    translate(Reverser(), paths)
    os._exit(0)


def test_a_process_may_die_before_any_line_of_the_program(paths, tmp_path):
    """Every 41st that is executed: they are met in all states."""
    line_number, dies = 0, True
    while dies:
        line_number += 41
        output = tmp_path / str(line_number) / "out"
        dies = run_and_die((paths[0], output), line_number)
        is_there = output.exists()
        assert not is_there or lines_of(output) == EXPECTED
        finished = finished_rows(output.with_name("out.partial"))
        translator = Reverser()
        if not is_there:  # else it is done, and to give the command again is to start again
            translate(translator, (paths[0], output))
            assert lines_of(output) == EXPECTED
            assert len(translator.translated) == 23 - len(finished)
            assert [path.name for path in output.parent.iterdir()] == ["out"]
    assert line_number > 10 * 41


@pytest.mark.parametrize("number", range(5))  # two logs, the settings, the lock, the folder
def test_a_run_that_died_while_it_cleaned_up_is_begun_again(paths, monkeypatch, number):
    steps = iter(range(9))

    def remove(method):
        def remove_or_die(path, **options):
            if next(steps) == number:
                raise Killed
            return method(path, **options)

        return remove_or_die

    with monkeypatch.context() as patch:
        for name in ("unlink", "rmdir"):
            patch.setattr(Path, name, remove(getattr(Path, name)))
        with pytest.raises(Killed):
            translate(Reverser(), paths)
    assert lines_of(paths[1]) == EXPECTED
    translate(Reverser(), paths)
    assert lines_of(paths[1]) == EXPECTED
    assert [path.name for path in paths[1].parent.iterdir()] == ["out"]


@pytest.mark.parametrize(
    "names", [["notes.txt"], ["data.jsonl", "settings.json"], ["finished.log"], ["lock", "lock.bak"]]
)
def test_a_folder_of_the_users_own_is_refused_and_left_as_it_was(paths, names):
    folder = paths[1].with_name("out.partial")
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).write_text("mine")
    translator = Reverser()
    other = next(name for name in names if name not in ("settings.json", "lock"))
    with pytest.raises(ValueError, match=rf"out\.partial, .* holds other files: {other}\. Move them elsewhere"):
        translate(translator, paths)
    assert {path.name: path.read_text() for path in folder.iterdir()} == dict.fromkeys(names, "mine")
    assert translator.translated == []


def test_a_file_that_comes_into_the_folder_during_the_work_stays(paths):
    folder = paths[1].with_name("out.partial")

    class Guest(Reverser):
        def translate(self, batch):
            (folder / "notes.txt").write_text("mine")
            return super().translate(batch)

    translate(Guest(), paths)
    assert lines_of(paths[1]) == EXPECTED
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("is_there", [True, False])
def test_an_output_that_is_a_link_is_followed(paths, tmp_path, is_there):
    target = tmp_path / "elsewhere" / "target"
    target.parent.mkdir()
    if is_there:
        target.write_text("old\n")
    paths[1].parent.mkdir()
    paths[1].symlink_to(target)
    translate(Reverser(), paths)
    assert paths[1].is_symlink()
    assert lines_of(target) == EXPECTED
    assert [path.name for path in target.parent.iterdir()] == ["target"]


@pytest.fixture
def begun(paths):
    """The folder of work that was killed."""
    with pytest.raises(Killed):
        translate(Reverser(lives=4), paths, settings={"num_beams": 4, "nbest": None})
    return paths[1].with_name("out.partial")


@pytest.mark.parametrize("damaged", ['{"format": 2, ', "[1, 2]", "[" * 100_000, "\0"])
def test_damaged_settings_are_refused_with_the_name_of_their_file(begun, paths, damaged):
    (begun / "settings.json").write_text(damaged)
    with pytest.raises(ValueError, match=r"out\.partial/settings\.json is damaged: expected a JSON object"):
        translate(Reverser(), paths)


def test_work_is_not_gone_on_with_under_other_settings_or_on_another_text(begun, paths):
    message = r"out\.partial holds work .*: nbest was null, is 2; num_beams was 4, is 5\. Give what it was begun with"
    with pytest.raises(ValueError, match=message):
        translate(Reverser(), paths, settings={"num_beams": 5, "nbest": 2})
    text = paths[0].read_text(encoding="utf-8")
    paths[0].write_text(text.replace("z\n", "y\n"), encoding="utf-8")
    digest = '"[0-9a-f]{16}"'
    with pytest.raises(ValueError, match=rf"another text or other settings: text was {digest}, is {digest}\."):
        translate(Reverser(), paths, settings={"num_beams": 4, "nbest": None})
    paths[0].write_text(text, encoding="utf-8")
    translate(Reverser(), paths, settings={"num_beams": 4, "nbest": None})
    assert lines_of(paths[1]) == EXPECTED


def test_settings_that_lack_some_are_other_settings(begun, paths):
    (begun / "settings.json").write_text("{}")
    with pytest.raises(ValueError, match=r"out\.partial holds work .* other settings: format was null, is 2"):
        translate(Reverser(), paths)


def test_a_line_that_is_not_utf_8_is_named_before_anything_is_translated(paths):
    paths[0].write_bytes(paths[0].read_bytes() + b"caf\xe9\n")
    translator = Reverser()
    with pytest.raises(ValueError, match=r"text, line 24: not UTF-8 at byte offset 3"):
        translate(translator, paths)
    assert translator.translated == []
    assert not paths[1].parent.exists()


@pytest.mark.parametrize("num_processes", [2, 3, 4, 5, 9])
def test_processes_share_the_lines_and_write_the_same(paths, num_processes):
    translators = [Reverser() for _ in range(num_processes)]
    translate_together(translators, paths)
    assert lines_of(paths[1]) == EXPECTED
    assert sorted(chain.from_iterable(translator.translated for translator in translators)) == sorted(SENTENCES)
    assert [path.name for path in paths[1].parent.iterdir()] == ["out"]


def test_whole_windows_are_dealt_and_the_batches_of_the_rest(paths):
    translators = [Reverser() for _ in range(3)]
    translate_together(translators, paths)
    for number, translator in enumerate(translators):  # windows of 7, 7, 7, and one batch of 2
        assert set(translator.translated) >= set(SENTENCES[7 * number : 7 * number + 7])
    assert [len(translator.translated) for translator in translators] == [9, 7, 7]


@pytest.mark.parametrize(("before", "after"), [(3, 2), (2, 3), (4, 1), (1, 4)])
def test_another_number_of_processes_may_go_on(paths, before, after):
    stopped = [Reverser(lives=1) for _ in range(before)]
    with pytest.raises(Killed):
        translate_together(stopped, paths)
    translators = [Reverser() for _ in range(after)]
    translate_together(translators, paths)
    assert lines_of(paths[1]) == EXPECTED
    assert sorted(chain.from_iterable(translator.translated for translator in stopped + translators)) == sorted(
        SENTENCES
    )


def test_a_machine_that_does_not_see_the_folder_is_told(paths):
    barrier = SimpleNamespace(parties=2, wait=lambda: None)
    with pytest.raises(FileNotFoundError, match=r"out\.partial, .* Processes on several machines need an output"):
        translate(Reverser(), paths, index=1, barrier=barrier)


def test_lines_that_another_machine_kept_to_itself_are_missed(paths):
    alone = SimpleNamespace(parties=2, wait=lambda: None)
    with pytest.raises(ValueError, match=r"out\.partial holds 0 of the 7 sentences from line 8 on"):
        translate(Reverser(), paths, index=0, barrier=alone)
    assert not paths[1].exists()
    second = Reverser()
    translate(second, paths)
    assert lines_of(paths[1]) == EXPECTED
    assert len(second.translated) == 7 + 2  # the second window and the last


@pytest.fixture
def bars(monkeypatch):
    """The bars that were shown or not, each with its settings."""
    made = []

    class Bar(tqdm):
        def __init__(self, *args, **kwargs):
            self.settings = kwargs
            super().__init__(*args, **kwargs | {"file": io.StringIO(), "disable": False})
            made.append(self)

    monkeypatch.setattr(file_translation, "tqdm", Bar)
    return made


def test_the_bar_counts_all_lines_and_begins_with_those_that_are_done(paths, bars):
    with pytest.raises(Killed):
        translate(Reverser(lives=2), paths)
    translate(Reverser(), paths)
    assert [(bar.total, bar.initial, bar.n) for bar in bars] == [(23, 0, 6), (23, 6, 23)]


def test_one_bar_stands_for_all_processes(paths, bars):
    translate_together([Reverser(), Reverser()], paths)
    shown = [bar for bar in bars if not bar.settings["disable"]]
    assert [(bar.total, bar.n) for bar in shown] == [(23, 23)]


def test_processes_that_do_not_know_of_each_other_are_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(ValueError, match=r"started 3 processes, .* of 1\. Without GPUs, set ACCELERATE_USE_CPU=true"):
        find_processes()


@pytest.fixture
def pipe():
    """A pipe to read from, and a function that writes into it and closes it when there is nothing to write."""
    reading, writing = os.pipe()

    def write(block):
        if block:
            os.write(writing, block)
        else:
            os.close(writing)

    with open(reading, "rb") as file:
        yield file, write


def test_lines_that_are_there_come_without_waiting_for_more(pipe):
    file, write = pipe
    windows = read_windows(file, name="pipe")
    write(b"one\ntwo\nthr")
    assert next(windows) == ["one", "two"]
    write(b"ee\n")
    assert next(windows) == ["three"]
    write(b"\n\nfour\r\n5\n6\n7")
    assert next(windows) == ["", "", "four", "5"]
    assert next(windows) == ["6"]
    write(b"")
    assert list(windows) == [["7"]]
    assert list(read_windows(file, name="pipe")) == []


def test_a_line_may_come_in_many_pieces(pipe, monkeypatch):
    monkeypatch.setattr(file_translation, "BYTES_PER_READ", 3)
    file, write = pipe
    text = "\ufefferste Zeile\nzweite \u2028 ohne Bruch\rganz\n" + "ä" * 100 + "\n"
    write(text.encode())
    write(b"")
    assert list(read_windows(file, name="pipe")) == [["erste Zeile", "zweite \u2028 ohne Bruch\rganz", "ä" * 100]]


def test_a_file_comes_in_full_windows(paths):
    with open(paths[0], "rb") as file:
        windows = list(read_windows(file, name="text"))
    assert [len(window) for window in windows] == [4, 4, 4, 4, 4, 3]
    assert list(chain.from_iterable(windows)) == SENTENCES


def test_lines_before_one_that_is_not_utf_8_are_written_and_that_one_is_named(pipe, paths):
    pipe[1](b"one\ntwo\ncaf\xe9\nfour\n")
    paths[0].write_bytes(b"one\ntwo\ncaf\xe9\nfour\n")
    for windows, name in ((read_windows(pipe[0], name="input"), "input"), (read_file_windows(paths[0]), "text")):
        written = io.StringIO()
        with pytest.raises(ValueError, match=rf"{name}, line 3: not UTF-8 at byte offset 3"):
            translate_stream(
                Reverser(), windows, written, to_lines=partial(format_lines, is_numbered=True, is_scored=False)
            )
        assert written.getvalue() == "1\teno\n1\t?\n2\towt\n2\t?\n"


def test_a_line_of_a_stream_that_does_not_end_does_not_fill_the_memory(pipe, monkeypatch):
    monkeypatch.setattr(file_translation, "BYTES_PER_READ", 7)
    monkeypatch.setattr(file_translation, "BYTES_OF_LONG_LINE", 24)
    monkeypatch.setattr("vaswani_transformer.data.lines.BYTES_OF_LONG_LINE", 24)
    monkeypatch.setattr("vaswani_transformer.data.lines.MOST_LINE_BYTES", 20)
    pipe[1](b"one\n" + "ä".encode() * 1_000 + b"\n" + b"x" * 20 + b"\nlast")
    pipe[1](b"")
    kept = []
    keep = file_translation._ReadyLines._keep

    def watch(lines, piece):
        keep(lines, piece)
        kept.append(sum(map(len, lines.rest)))

    monkeypatch.setattr(file_translation._ReadyLines, "_keep", watch)
    assert list(read_windows(pipe[0], name="pipe")) == [["one", "ä" * 12, "x" * 20, "last"]]
    assert max(kept) < 24 + 7


def test_each_window_of_a_stream_is_written_before_the_next_is_read():
    written = io.StringIO()

    def windows():
        yield ["ab", "cd"]
        assert written.getvalue() == "1\tba\n1\t?\n2\tdc\n2\t?\n"
        yield ["ef"]

    to_lines = partial(format_lines, is_numbered=True, is_scored=False)
    translate_stream(Reverser(), windows(), written, to_lines=to_lines)
    assert written.getvalue().endswith("3\tfe\n3\t?\n")
