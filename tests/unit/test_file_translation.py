"""Translating streams, and files in windows of lines. Finished windows survive the death of the process."""

import contextlib
import gzip
import io
import os
import sys
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from types import SimpleNamespace

import pytest
from shortcuts import each_case, write_lines
from tqdm import tqdm

from vaswani_transformer.data.lines import MOST_LINE_BYTES
from vaswani_transformer.translation import files as file_translation
from vaswani_transformer.translation.files import (
    find_processes,
    read_pipe,
    read_windows,
    translate_file,
    translate_stream,
)
from vaswani_transformer.translation.translator import Hypothesis, format_lines

WORDS = ["".join(chr(97 + (i + j) % 26) for j in range(5 * i % 8)) + str(i) for i in range(20)]
SENTENCES = [*WORDS, "", "ä\u2028b", "z"]
EXPECTED = "".join(f"{number}\t-1.0000\t{sentence[::-1]}\n" for number, sentence in enumerate(SENTENCES, start=1))
to_lines = partial(format_lines, is_numbered=True, is_scored=True)


class Killed(BaseException):
    """The death of a process, played by an exception that handlers of `Exception` do not catch."""


class Reverser:
    """A translator that reverses sentences. After `lives` sentences, the next one raises `Killed`."""

    tokens_per_batch = 7
    join_lines = staticmethod(iter)

    def __init__(self, lives=1_000):
        self.lives = lives
        self.translated = []

    def __call__(self, sentences, *, on_batch):
        for sentence in sentences:
            self.lives -= 1
            if self.lives < 0:
                raise Killed
            self.translated.append(sentence)
            on_batch(1)
        return [[Hypothesis(sentence[::-1], -1.0)] for sentence in sentences]


@pytest.fixture(autouse=True)
def small_windows(monkeypatch):
    # Without a minimum, a window of a file has as many lines as `Reverser.tokens_per_batch`, so the 23 lines make
    # windows of 7, 7, 7 and 2. `read_windows` yields 4 lines at a time.
    monkeypatch.setattr(file_translation, "LEAST_LINES_PER_WINDOW", 1)
    monkeypatch.setattr(file_translation, "LINES_PER_STREAM_WINDOW", 4)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def paths(tmp_path):
    """Return the path of the text and the path for its translation."""
    write_lines(tmp_path / "text", SENTENCES)
    return tmp_path / "text", tmp_path / "new" / "out"


def translate(translator, paths, *, index=0, barrier=None):
    barrier = barrier or threading.Barrier(1)
    # This stands in for `PartialState` of Accelerate: each thread plays a process.
    processes = SimpleNamespace(
        process_index=index,
        num_processes=barrier.parties,
        is_main_process=index == 0,
        wait_for_everyone=barrier.wait,
    )
    translate_file(translator, *paths, to_lines=to_lines, settings={}, processes=processes)


def translate_together(translators, paths):
    """Let each translator translate in its own thread. Raise the first error of a thread, if there is one."""
    barrier = threading.Barrier(len(translators))

    def work(index, translator):
        try:
            translate(translator, paths, index=index, barrier=barrier)
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(len(translators)) as pool:
        futures = [pool.submit(work, *numbered) for numbered in enumerate(translators)]
    for future in futures:
        with contextlib.suppress(threading.BrokenBarrierError):  # raised in threads that wait for the failed one
            future.result()


def assert_done(output):
    """Fail unless the output holds the whole translation and is the only file in its folder."""
    assert output.read_text(encoding="utf-8") == EXPECTED
    assert list(output.parent.iterdir()) == [output]


def finished_sentences(output):
    """Return the sentences of the finished windows, which are in the folder out.partial beside `output`."""
    starts = [int(path.name[-12:]) - 1 for path in output.with_name("out.partial").glob("lines-" + 12 * "[0-9]")]
    return [sentence for start in sorted(starts) for sentence in SENTENCES[start : start + 7]]


def test_an_empty_file_gives_an_empty_file(paths):
    paths[0].write_text("")
    translate(Reverser(), paths)
    assert paths[1].read_bytes() == b""


def run_and_die(paths, line_number):
    """Translate in a child process that dies, without any clean-up, before its `line_number`-th executed line of code.

    Only lines of `translation.files` are counted, and each of them as often as it is executed. Return True if the
    process died, and False if the translation ended before.
    """
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


def test_a_process_that_dies_at_any_line_of_code_loses_only_its_present_window(paths, tmp_path):
    # Each run dies five executed lines later than the run before, until a run ends without dying. So all stages are
    # covered, down to the removal of the folder out.partial.
    line_number, dies = 0, True
    while dies:
        line_number += 5
        output = tmp_path / str(line_number) / "out"
        output.parent.mkdir()
        output.write_text("old\n")
        dies = run_and_die((paths[0], output), line_number)
        assert output.read_text(encoding="utf-8") in (("old\n", EXPECTED) if dies else (EXPECTED,))
        finished = finished_sentences(output)
        translator = Reverser()
        translate(translator, (paths[0], output))
        assert sorted(finished + translator.translated) == sorted(SENTENCES)
        assert_done(output)
    assert line_number > 30 * 5


DAMAGE = {
    "a flipped bit": lambda path, other: path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:]),
    "the content of another window": lambda path, other: path.write_bytes(other.read_bytes()),
}


@each_case("damage", DAMAGE)
def test_a_damaged_window_is_translated_again(paths, damage):
    with pytest.raises(Killed):
        translate(Reverser(lives=17), paths)
    folder = paths[1].with_name("out.partial")
    damage(*(folder / f"lines-{number:012d}" for number in (1, 8)))
    translate(Reverser(), paths)
    assert_done(paths[1])


def test_a_window_that_is_damaged_during_the_translation_is_reported_and_not_written_to_the_output(paths, monkeypatch):
    class Damager(Reverser):
        def __call__(self, sentences, **options):
            for path in paths[1].with_name("out.partial").glob("lines-*1"):
                path.write_bytes(b"")
            return super().__call__(sentences, **options)

    with pytest.raises(
        ValueError, match=r"lines-000000000001 was damaged during the translation, or its text was changed: repeat"
    ):
        translate(Damager(), paths)
    assert not paths[1].exists()


@each_case("text", {"changed": ["new", *SENTENCES[1:]], "longer": [*SENTENCES, "new"], "shorter": SENTENCES[:-1]})
def test_a_text_that_changes_while_it_is_translated_gives_no_output(paths, text):
    class Changer(Reverser):
        def __call__(self, sentences, **options):
            write_lines(paths[0], text)
            return super().__call__(sentences, **options)

    with pytest.raises(ValueError, match="text changed while it was translated: repeat the command"):
        translate(Changer(), paths)
    assert not paths[1].exists()
    write_lines(paths[0], SENTENCES)  # Windows that were made from the other text are translated again.
    translate(Reverser(), paths)
    assert_done(paths[1])


def test_files_of_the_user_in_the_folder_of_windows_are_kept(paths):
    folder = paths[1].with_name("out.partial")
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text("mine")
    translate(Reverser(), paths)
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]
    (folder / "lines-1").write_text("mine")
    with pytest.raises(ValueError, match=r"out\.partial/lines-1 would be overwritten"):
        translate(Reverser(lives=0), paths)
    assert {path.read_text() for path in folder.iterdir() if path.name != "lock"} == {"mine"}


def test_an_output_named_gz_is_compressed(paths):
    output = paths[1].with_suffix(".gz")
    translate(Reverser(), (paths[0], output))
    assert gzip.decompress(output.read_bytes()).decode() == EXPECTED


def test_an_output_that_is_a_link_is_followed(paths, tmp_path):
    target = tmp_path / "elsewhere" / "target"
    target.parent.mkdir()
    paths[1].parent.mkdir()
    paths[1].symlink_to(target)
    translate(Reverser(), paths)
    assert paths[1].is_symlink()
    assert_done(target)


def test_work_is_not_continued_with_larger_batches_or_on_another_text(paths):
    with pytest.raises(Killed):
        translate(Reverser(lives=8), paths)
    with_larger_batches = Reverser()
    with_larger_batches.tokens_per_batch = 8
    with pytest.raises(ValueError, match=r"out\.partial was begun with other settings: lines_per_window was 7, is 8\."):
        translate(with_larger_batches, paths)
    paths[0].write_bytes(paths[0].read_bytes() + b"y\n")
    with pytest.raises(ValueError, match=r'settings: text was "[0-9a-f]{16}", is "[0-9a-f]{16}"\.'):
        translate(Reverser(), paths)


def test_a_line_that_is_not_utf_8_is_refused_before_anything_is_translated(paths):
    paths[0].write_bytes(paths[0].read_bytes() + b"caf\xe9\n")
    with pytest.raises(ValueError, match=r"text, line 24: not UTF-8 at byte offset 3"):
        translate(Reverser(lives=0), paths)
    assert not paths[1].parent.exists()


def test_processes_take_the_windows_in_turn(paths):
    translators = [Reverser() for _ in range(3)]
    translate_together(translators, paths)
    assert [translator.translated for translator in translators] == [
        SENTENCES[:7] + SENTENCES[21:],
        SENTENCES[7:14],
        SENTENCES[14:21],
    ]
    assert_done(paths[1])


@pytest.mark.parametrize(("before", "after"), [(3, 2), (2, 9), (1, 4)])
def test_a_different_number_of_processes_may_continue_the_work(paths, before, after):
    with pytest.raises(Killed):
        translate_together([Reverser(lives=7), *(Reverser(lives=3) for _ in range(before - 1))], paths)
    finished = finished_sentences(paths[1])
    translators = [Reverser() for _ in range(after)]
    translate_together(translators, paths)
    assert_done(paths[1])
    translated = chain.from_iterable(translator.translated for translator in translators)
    assert sorted([*finished, *translated]) == sorted(SENTENCES)


def test_one_progress_bar_counts_the_lines_of_all_processes_and_of_earlier_runs(paths, monkeypatch):
    bars = []

    class Bar(tqdm):
        def __init__(self, *args, disable, **kwargs):
            super().__init__(*args, **kwargs | {"file": io.StringIO(), "disable": False})
            bars.extend([] if disable else [self])

    monkeypatch.setattr(file_translation, "tqdm", Bar)
    with pytest.raises(Killed):
        translate(Reverser(lives=9), paths)
    translate_together([Reverser(), Reverser()], paths)
    assert [(bar.total, bar.initial, bar.n) for bar in bars] == [(23, 0, 9), (23, 7, 23)]


def test_processes_that_do_not_know_of_each_other_are_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(ValueError, match=r"started 3 processes, .* of 1\. Without GPUs, set ACCELERATE_USE_CPU=true"):
        find_processes()


@pytest.fixture
def pipe():
    """Yield the reading end of a pipe as a file, and a function that writes bytes to the pipe. Empty bytes close it."""
    reading, writing = os.pipe()

    def write(block):
        if block:
            os.write(writing, block)
        else:
            os.close(writing)

    with open(reading, "rb") as file:
        yield file, write


def test_available_lines_are_yielded_without_waiting_for_more(pipe):
    file, write = pipe
    windows = read_pipe(file, name="pipe")
    write(b"one\ntwo\nthr")
    assert next(windows) == ["one", "two"]
    write(b"ee\n")
    assert next(windows) == ["three"]
    write(b"\n\nfour\r\n5\n6\n7")
    assert next(windows) == ["", "", "four", "5", "6"]
    write(b"")
    assert list(windows) == [["7"]]
    assert list(read_pipe(file, name="pipe")) == []


def test_a_line_may_arrive_in_many_pieces(pipe, monkeypatch):
    monkeypatch.setattr(file_translation, "BYTES_PER_READ", 3)
    file, write = pipe
    text = "\ufeffeins \u2028\rzwei\n" + "ä" * 100 + "\nlast"
    write(text.encode())
    write(b"")
    assert list(chain.from_iterable(read_pipe(file, name="pipe"))) == ["eins \u2028\rzwei", "ä" * 100, "last"]


def test_a_very_long_line_of_a_stream_does_not_fill_the_memory():
    blocks = iter([b"one\n", *["ä".encode() * 30_000] * 500, b"\nlast"])  # 30 MB
    file = SimpleNamespace(read1=lambda size: next(blocks, b""))
    tracemalloc.start()
    first, long, last = chain.from_iterable(read_pipe(file, name="pipe"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (first, last) == ("one", "last")
    assert set(long) == {"ä"}
    assert len(long) == MOST_LINE_BYTES // 2
    assert peak < 8 * 2**20


def test_a_file_is_read_in_full_windows(paths):
    assert list(read_windows(paths[0])) == [SENTENCES[start : start + 4] for start in range(0, 23, 4)]


def test_the_error_about_a_stream_that_is_not_utf_8_names_the_line():
    file = io.BytesIO(b"one\ntwo\ncaf\xe9\nfour\n")
    with pytest.raises(ValueError, match="input, line 3: not UTF-8 at byte offset 3"):
        list(read_pipe(file, name="input"))


def test_each_window_of_a_stream_is_flushed_before_the_next_is_read(tmp_path):
    with open(tmp_path / "written", "w") as written:

        def windows():
            yield ["ab", "cd"]
            assert (tmp_path / "written").read_text() == "1\t-1.0000\tba\n2\t-1.0000\tdc\n"
            yield ["ef"]

        translate_stream(Reverser(), windows(), written, to_lines=to_lines)
        assert (tmp_path / "written").read_text().endswith("3\t-1.0000\tfe\n")


def test_two_processes_share_a_short_file(paths, monkeypatch):
    monkeypatch.setattr(file_translation, "LEAST_LINES_PER_WINDOW", 4_096)
    paths[0].write_text("a\n" * 1_000)
    translators = [Reverser(), Reverser()]
    translate_together(translators, paths)
    assert [len(translator.translated) for translator in translators] == [512, 488]
