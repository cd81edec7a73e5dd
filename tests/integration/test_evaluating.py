"""`vaswani evaluate`, with a model and without."""

import re

import pytest

from vaswani_transformer import cli
from vaswani_transformer.evaluation.scores import build_metrics, compute_scores
from vaswani_transformer.hub.card import METRICS, read_scores
from vaswani_transformer.loading import fingerprint_model
from vaswani_transformer.model.pipeline_vaswani import custom_pipelines

REFERENCES = ["Der Hund-Katzen-Streit endet heute.", "Zwei Katzen schlafen auf dem Bett.", "Es regnet seit Tagen."] * 4
CLOSE = [line.replace("Bett", "Sofa") for line in REFERENCES]
FAR = [" ".join(line.split()[::-1]) for line in REFERENCES]


@pytest.fixture
def files(tmp_path):
    """Paths of the references and of two systems' translations."""
    paths = []
    for name, lines in (("ref.de", REFERENCES), ("close.de", CLOSE), ("far.de", FAR)):
        paths.append(tmp_path / name)
        paths[-1].write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return list(map(str, paths))


def test_a_model_is_scored_in_all_ways_with_its_search_and_fingerprint(build_translator, files, tmp_path, capsys):
    build_translator(REFERENCES, vocab_size=300, folder=tmp_path / "m")
    written = tmp_path / "out.de"
    arguments = ["--model", str(tmp_path / "m"), "--test", files[0], files[0], "--max_length_offset", "2"]
    assert cli.main(["evaluate", *arguments, "--num_beams", "2", "--translations", str(written)]) == 0
    (tmp_path / "test.score").write_text(capsys.readouterr().out)
    *printed, perplexity, search = (tmp_path / "test.score").read_text().splitlines()
    hypotheses = written.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    assert printed == list(map(str, compute_scores(hypotheses, REFERENCES, build_metrics())))
    assert re.fullmatch(r"perplexity \d+\.\d{3} per sub-word, no label smoothing", perplexity)
    assert search.startswith("search num_beams:2|length_penalty:0.6|")
    assert search.endswith(f"model {tmp_path / 'm'}  fingerprint {fingerprint_model(tmp_path / 'm')}")
    for_card = read_scores("newstest2014", tmp_path / "test.score")
    assert {score.metric for score in for_card} == METRICS.keys()
    assert {score.fingerprint for score in for_card} == {fingerprint_model(tmp_path / "m")}


def test_the_paper_s_bleu_is_of_the_language_of_the_model_s_task_unless_told(build_translator, files, tmp_path, capsys):
    tasks = custom_pipelines("translation_en_to_fr")
    build_translator(REFERENCES, vocab_size=300, folder=tmp_path / "m", custom_pipelines=tasks)
    for more, language in (([], "fr"), (["--target_language", "de"], "de")):
        arguments = ["--model", str(tmp_path / "m"), "--test", files[0], files[0], "--max_length_offset", "1", *more]
        assert cli.main(["evaluate", *arguments, "--num_beams", "1"]) == 0
        assert f"-{language}-split|" in capsys.readouterr().out


def test_one_file_is_scored_without_a_model(files, capsys):
    assert cli.main(["evaluate", "--hypotheses", files[1], "--references", files[0], "--lowercase"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed == list(map(str, compute_scores(CLOSE, REFERENCES, build_metrics(lowercase=True))))


def test_several_files_are_compared_with_the_first(files, capsys):
    assert cli.main(["evaluate", "--hypotheses", *files[1:], "--references", files[0], "--tokenize", "none"]) == 0
    header, *rows, _, _, signatures = capsys.readouterr().out.split("\n", 8)
    assert header.split() == files[1:]
    for row, score in zip(rows[:5], compute_scores(CLOSE, REFERENCES, build_metrics(tokenize="none")), strict=True):
        assert row.startswith(score.name)
        assert f" {score.value:.2f} +- " in row
        assert re.search(r"p 0\.0\d\d$", row)
    assert signatures.count("bs:1000|seed:12345") == 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "m"], "a model translates and is scored on --test"),
        (["--model", "m", "--test", "a", "b", "--references", "c"], "a model translates and is scored on --test"),
        (["--hypotheses", "a"], "--hypotheses are scored against --references"),
        (["--hypotheses", "a", "--references", "b", "--test", "c"], "--test: for a --model only, not for --hypotheses"),
        (
            ["--hypotheses", "a", "--references", "b", "--num_beams", "4", "--ensemble", "c", "--split", "validation"],
            "--split, --num_beams, --ensemble: for a --model only",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(arguments, message, capsys):
    with pytest.raises(SystemExit):
        cli.main(["evaluate", *arguments])
    error = capsys.readouterr().err
    assert error.startswith("usage: vaswani evaluate [-h]")
    assert f"vaswani evaluate: error: {message}" in error


def test_a_model_or_files_must_be_named(capsys):
    with pytest.raises(SystemExit):
        cli.main(["evaluate"])
    assert "one of the arguments --model --hypotheses is required" in capsys.readouterr().err
