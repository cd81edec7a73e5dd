"""`vaswani evaluate` scores the translations of a model, or of a file."""

import os
import shutil
import subprocess
import sys

import pytest
from shortcuts import read_json, vaswani, write_lines

from vaswani_transformer.evaluation import metrics
from vaswani_transformer.evaluation.likelihood import compute_perplexity
from vaswani_transformer.evaluation.metrics import Score, build_metrics, compute_scores
from vaswani_transformer.hub.card import Evaluation, read_scores
from vaswani_transformer.loading import fingerprint_model, load_translator
from vaswani_transformer.model.pipeline_vaswani import custom_pipelines

REFERENCES = ["Der Hund-Katzen-Streit endet heute.", "Zwei Katzen schlafen auf dem Bett.", "Es regnet seit Tagen."] * 4
CLOSE = [line.replace("Bett", "Sofa") for line in REFERENCES]


@pytest.fixture
def files(tmp_path):
    """Return the paths of two files: the references, and translations that are close to them."""
    write_lines(tmp_path / "ref.de", REFERENCES)
    write_lines(tmp_path / "close.de", CLOSE)
    return tmp_path / "ref.de", tmp_path / "close.de"


@pytest.fixture(scope="module")
def model(build_translator, tmp_path_factory):
    """Return the folder of an untrained model."""
    folder = tmp_path_factory.mktemp("model")
    build_translator(REFERENCES, vocab_size=300, folder=folder)
    return folder


@pytest.fixture
def evaluate(output_of):
    """Return a function that scores a model with a small search, and returns what is printed."""
    return lambda model, options: output_of(f"evaluate --model {model} --num_beams 2 --max_length_offset 2 {options}")


def test_scores_of_a_model_are_printed_and_saved_with_its_search_and_fingerprint(model, files, tmp_path, evaluate):
    written = tmp_path / "out.de"
    file = tmp_path / "test.json"
    printed = evaluate(model, f"--test {files[0]} {files[0]} --translations {written} --json {file}")
    value = compute_perplexity(*load_translator(model), list(zip(REFERENCES, REFERENCES, strict=True)))
    search = "num_beams:2|length_penalty:0.6|length_penalty_type:gnmt|max_length_offset:2|early_stopping:never"
    fingerprint = fingerprint_model(model)
    hypotheses = written.read_text(encoding="utf-8").split("\n")[:-1]
    scores = compute_scores(hypotheses, [REFERENCES], build_metrics())
    assert printed.splitlines() == [
        *map(str, scores),
        f"perplexity {value:.3f} per sub-word, no label smoothing",
        f"search {search}  model {model}  fingerprint {fingerprint}",
    ]
    found = read_scores("newstest2014", file)
    perplexity = Score("perplexity", pytest.approx(value), "per sub-word, no label smoothing")
    assert found == Evaluation("newstest2014", [*scores, perplexity], search, fingerprint)
    assert read_json(file)["models"] == [str(model)]


def test_the_printed_fingerprint_belongs_to_the_scored_model_even_if_training_ends_meanwhile(
    build_translator, model, files, tmp_path, capsys, monkeypatch
):
    checkpoint, newer = [tmp_path / "run/checkpoints" / f"step-0000000{number}" for number in (1, 2)]
    build_translator(CLOSE, vocab_size=300, folder=checkpoint)
    (checkpoint / "COMPLETE").write_text('{"files": {}}')
    fingerprint = fingerprint_model(checkpoint)

    def end_training(*args):
        for folder in (newer, tmp_path / "run/model"):
            shutil.copytree(model, folder)
        shutil.rmtree(checkpoint)
        return compute_scores(*args)

    monkeypatch.setattr(metrics, "compute_scores", end_training)
    vaswani(f"evaluate --model {tmp_path}/run --num_beams 2 --max_length_offset 2 --test {files[0]} {files[0]}")
    printed = capsys.readouterr()
    assert printed.out.endswith(f"fingerprint {fingerprint}\n")
    assert printed.err.count("its newest checkpoint is used (step-00000001)") == 1


@pytest.mark.slow
def test_of_two_processes_only_the_first_evaluates(model, tmp_path, output_of):
    write_lines(tmp_path / "test.de", REFERENCES)
    command = f"evaluate --model {model} --test {tmp_path}/test.de {tmp_path}/test.de --max_length_offset 2"
    torchrun = "-m torch.distributed.run --standalone --nproc_per_node 2 -m vaswani_transformer"
    environment = os.environ | {"ACCELERATE_USE_CPU": "true"}
    run = [sys.executable, *torchrun.split(), *command.split()]
    done = subprocess.run(run, env=environment, check=True, capture_output=True, text=True, timeout=900)
    assert done.stdout == output_of(command)
    assert done.stderr.count("only the first process works, because this work is not shared") == 1


def test_the_table_has_one_row_for_each_pair_even_if_its_text_has_line_breaks(model, tmp_path, evaluate):
    (tmp_path / "test.jsonl").write_text('{"en": "a\\tb\\r\\nc", "de": "\\"d\\u2028e"}\n{"en": "", "de": "f"}\n')
    evaluate(model, f"--test {tmp_path}/test.jsonl --translations {tmp_path}/out.de --table {tmp_path}/table.tsv")
    translations, table = ((tmp_path / name).read_text(encoding="utf-8") for name in ("out.de", "table.tsv"))
    first, second, _ = translations.split("\n")
    assert table == f'source\thypothesis\treference\na b c\t{first}\t"d e\n\t{second}\tf\n'


def test_the_bleu_of_the_paper_uses_the_target_language_of_the_model_unless_another_is_given(
    build_translator, files, tmp_path, evaluate
):
    tasks = custom_pipelines("translation_en_to_fr")
    build_translator(REFERENCES, vocab_size=300, folder=tmp_path / "m", custom_pipelines=tasks)
    for more, language in (("", "fr"), ("--target_language de", "de")):
        assert f"-{language}-split|" in evaluate(tmp_path / "m", f"--test {files[0]} {files[0]} {more}")


def test_a_model_is_scored_on_the_references_of_the_test_set_and_on_further_ones(model, files, tmp_path, evaluate):
    references, close = files
    written = tmp_path / "out.de"
    test = f"--test {references} {references} --references {close} {references}"
    printed = evaluate(model, f"{test} --translations {written}")
    hypotheses = written.read_text(encoding="utf-8").splitlines()
    expected = compute_scores(hypotheses, [REFERENCES, CLOSE, REFERENCES], build_metrics())
    assert printed.splitlines()[:5] == list(map(str, expected))


def test_a_file_of_translations_is_scored_without_a_model(files, output_of):
    printed = output_of(f"evaluate --hypotheses {files[1]} --references {files[0]} --lowercase").splitlines()
    assert printed == list(map(str, compute_scores(CLOSE, [REFERENCES], build_metrics(lowercase=True))))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--model m --references c", "--model needs a test set to translate"),
        ("--hypotheses a", "--hypotheses needs reference translations"),
        (
            "--hypotheses a --references b --num_beams 4 --ensemble c --split validation",
            "--split, --num_beams, --ensemble: only with --model",
        ),
    ],
)
def test_options_that_do_not_fit_together_are_refused(arguments, message, capsys):
    with pytest.raises(SystemExit):
        vaswani(f"evaluate {arguments}")
    assert f"vaswani evaluate: error: {message}" in capsys.readouterr().err
