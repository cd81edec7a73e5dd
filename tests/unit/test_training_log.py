import pytest

from vaswani_transformer.training.log import Log, read_log


def write_lines(folder, updates, *, from_update):
    log = Log(folder, is_main_process=True)
    log.open(update=from_update)
    for update in updates:
        log.write({"update": update})


@pytest.mark.parametrize(
    ("damage", "left"),
    [
        (lambda log: None, [1, 2]),
        (lambda log: log.unlink(), []),
        (lambda log: log.write_bytes(log.read_bytes()[:-15]), [1]),
        (lambda log: log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[1:])), [2]),
        (lambda log: log.write_bytes(log.read_bytes()[:10] + bytes(1_000)), []),
    ],
    ids=["whole", "deleted", "cut", "without its first line", "filled with NUL"],
)
def test_lines_after_the_place_to_go_on_from_are_taken_away_and_those_left_before_it_stay(tmp_path, damage, left):
    write_lines(tmp_path, [1, 2, 3], from_update=0)
    damage(tmp_path / "log.jsonl")
    write_lines(tmp_path, [3, 4], from_update=2)
    assert [line["update"] for line in read_log(tmp_path)] == [*left, 3, 4]


def test_only_the_main_process_writes(tmp_path, capsys):
    log = Log(tmp_path, is_main_process=False)
    log.open(update=0)
    log.write({"update": 1})
    log.print("text")
    assert not list(tmp_path.iterdir())
    assert not capsys.readouterr().err
