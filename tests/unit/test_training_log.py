import json
from types import SimpleNamespace

import pytest
from accelerate import Accelerator

from vaswani_transformer.training.log import Log, check_trackers, read_log

TO_TENSORBOARD = {"log_with": "tensorboard", "project_dir": "."}


def write_lines(folder, updates, *, from_update, num_bytes, **options):
    with Log(folder, Accelerator(**options)) as it:
        it.open(update=from_update, num_bytes=num_bytes)
        for update in updates:
            it.write({"update": update, "loss": None if update == 2 else 0.5})
        return it.sync()


def test_lines_after_the_place_to_go_on_from_are_taken_away_from_file_and_tensorboard(tmp_path, writers):
    length = write_lines(tmp_path, [1], from_update=0, num_bytes=0, **TO_TENSORBOARD)
    write_lines(tmp_path, [2], from_update=1, num_bytes=length, **TO_TENSORBOARD)
    write_lines(tmp_path, [2, 3], from_update=1, num_bytes=length, **TO_TENSORBOARD)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["update"] for line in lines] == [1, 2, 3]
    assert [writer.purge_step for writer in writers] == [1, 2, 2]
    assert all(writer.is_closed for writer in writers)
    assert writers[2].points == [("loss", 0.5, 3)]  # of update 2 no loss is known


@pytest.mark.parametrize(
    ("damage", "left"),
    [
        (lambda log: log.unlink(), []),
        (lambda log: log.write_bytes(log.read_bytes()[:-30]), [1]),
        (lambda log: log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[1:])), [2]),
        (lambda log: log.write_bytes(log.read_bytes()[:10] + bytes(1_000)), []),
    ],
    ids=["deleted", "cut", "without its first line", "filled with NUL"],
)
def test_a_log_that_has_lost_lines_goes_on_after_those_that_are_left(tmp_path, capsys, damage, left):
    length = write_lines(tmp_path, [1, 2], from_update=0, num_bytes=0)
    write_lines(tmp_path, [3], from_update=2, num_bytes=length)
    assert not capsys.readouterr().err
    damage(tmp_path / "log.jsonl")
    write_lines(tmp_path, [3, 4], from_update=2, num_bytes=length)
    assert f"WARNING: {tmp_path / 'log.jsonl'} has lost lines up to update 2" in capsys.readouterr().err
    assert [line["update"] for line in read_log(tmp_path)] == [*left, 3, 4]


@pytest.mark.parametrize("name", ["tensorbord", "wandb"])
def test_a_tracker_that_is_unknown_or_not_installed_is_refused(writers, name):
    check_trackers(["tensorboard"])
    with pytest.raises(ValueError, match=rf"no tracker {name} here: .*pip install {name}\)"):
        check_trackers(["tensorboard", name])


def test_only_the_main_process_writes(tmp_path, writers, capsys):
    with Log(tmp_path, SimpleNamespace(is_main_process=False, trackers=[], log=lambda *_, **__: None)) as it:
        it.open(update=0, num_bytes=0)
        it.write({"update": 1})
        it.print("text")
    assert not list(tmp_path.iterdir())
    assert not writers
    assert not capsys.readouterr().err
