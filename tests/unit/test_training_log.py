"""The log of a run, and the trackers that get its numbers."""

from dataclasses import replace
from unittest.mock import Mock

import pytest
from accelerate import Accelerator
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, GeneralTracker
from tiny_training import TINY, train

from vaswani_transformer.training.log import Log, read_log

# Lines of JSON that are no lines of a log.
OTHER_LINES = (b"[1]", b"null", b"{}", b'{"update": "x"}', b'{"update": 1, "loss": "x"}', b"[" * 9_999)


class Curve(GeneralTracker):
    """A tracker that keeps all points that are logged."""

    name = "curve"
    requires_logging_directory = False

    def __init__(self):
        super().__init__()
        self.points = []
        self.is_finished = False

    @property
    def tracker(self):
        return self

    def log(self, values, step=None, **kwargs):
        self.points.append((step, values))

    def finish(self):
        self.is_finished = True


def write_lines(folder, updates, *, from_update, **options):
    """Open the log at `from_update` and write a line for each update. The accelerator gets the `options`."""
    log = Log(folder, Accelerator(**options))
    log.open(update=from_update)
    for update in updates:
        log.write({"update": update, "loss": update / 2})
    log.close()


@pytest.mark.parametrize(
    ("damage", "kept_updates"),
    [
        (lambda content: content, [1, 2]),
        (lambda content: content[:-30], [1]),
        (lambda content: content.partition(b"\n")[2], [2]),
        (lambda content: content[:10] + bytes(1_000), []),
        (lambda content: content.replace(b'{"update": 2', b"{"), [1]),
        *((lambda content, line=line: b"%s\n" % line + content, [1, 2]) for line in OTHER_LINES),
    ],
)
def test_a_resumed_log_drops_later_lines_and_keeps_readable_earlier_lines(tmp_path, damage, kept_updates):
    write_lines(tmp_path, [1, 2, 3], from_update=0)
    log = tmp_path / "log.jsonl"
    log.write_bytes(damage(log.read_bytes()))
    write_lines(tmp_path, [3, 4], from_update=2)
    assert [line["update"] for line in read_log(tmp_path)] == [*kept_updates, 3, 4]


@pytest.mark.parametrize("line", OTHER_LINES)
def test_a_log_with_other_lines_is_called_damaged(tmp_path, line):
    (tmp_path / "log.jsonl").write_bytes(line)
    with pytest.raises(ValueError, match=r"log\.jsonl was not written by this version of the package, or is damaged"):
        read_log(tmp_path)


def test_only_the_main_process_writes(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Accelerator, "is_main_process", False)
    curve = Curve()
    log = Log(tmp_path, Accelerator(log_with=curve))
    log.open(update=0)
    log.write({"update": 1})
    log.print("text")
    log.close()
    assert not list(tmp_path.iterdir())
    assert not curve.points
    assert not capsys.readouterr().err


def test_a_tracker_that_is_installed_gets_the_numbers_of_a_run(tiny_data, tmp_path, monkeypatch):
    curve = Curve()
    build = Mock(return_value=curve, requires_logging_directory=False)
    monkeypatch.setitem(LOGGER_TYPE_TO_CLASS, "curve", build)
    train(replace(TINY, num_updates=2), tiny_data, tmp_path, log_interval=1, report_to="curve")
    assert [{"update": update} | numbers for update, numbers in curve.points] == read_log(tmp_path)
    assert curve.points


def test_a_resumed_run_sends_kept_and_new_lines_to_its_trackers_and_removes_old_files_of_tensorboard(tmp_path):
    write_lines(tmp_path, [1, 2, 3], from_update=0)
    old = tmp_path / "events.out.tfevents.1.host"
    old.touch()
    curve = Curve()
    write_lines(tmp_path, [3, 4], from_update=2, log_with=curve)
    assert not old.exists()
    assert curve.points == [(1, {"loss": 0.5}), (2, {"loss": 1.0}), (3, {"loss": 1.5}), (4, {"loss": 2.0})]
    assert curve.is_finished
