"""Scores of given translations, as token ids, as text and in files."""

import copy

import pytest
import torch
from shortcuts import PAD, SENTENCES, vaswani, write_lines
from torch.testing import assert_close

from vaswani_transformer.evaluation import likelihood
from vaswani_transformer.evaluation.likelihood import score, score_pairs

SOURCE = torch.tensor([sentence + [PAD] * (7 - len(sentence)) for sentence in SENTENCES])
LABELS = torch.tensor([[4, 2, -100, -100], [9, 9, 31, 2], [2, -100, -100, -100], [30, 5, 2, -100]])


@pytest.fixture(scope="module")
def model(build_ending_model):
    return build_ending_model(end_bias=4.0, max_length_offset=6, decoder_layers=2)


@pytest.fixture(params=[torch.float32, torch.bfloat16])
def default_dtype(request):
    torch.set_default_dtype(request.param)
    yield
    torch.set_default_dtype(torch.float32)


# Tokens


@pytest.mark.parametrize(
    "options",
    [{}, {"length_penalty": 0.0}, {"length_penalty": 1.0, "length_penalty_type": "power"}],
    ids=str,
)
@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.usefixtures("default_dtype")
def test_score_agrees_with_the_scores_of_a_search_whatever_the_default_dtype_of_torch_is(model, count, options):
    found = model.generate(SOURCE, num_return_sequences=count, return_dict_in_generate=True, **options)
    scores = score(model, SOURCE, found.sequences[:, 1:], **options).scores
    assert_close(scores, found.sequences_scores, rtol=0, atol=1e-5)


def test_the_length_penalty_comes_from_the_generation_config(model):
    configured = copy.deepcopy(model)
    changes = {"length_penalty": 0.2, "length_penalty_type": "power"}
    configured.generation_config.update(**changes)
    assert_close(score(configured, SOURCE, LABELS).scores, score(model, SOURCE, LABELS, **changes).scores)


@torch.no_grad()
def test_log_probs_agree_with_teacher_forcing(model):
    found = score(model, SOURCE, LABELS)
    assert found.lengths.tolist() == [2, 4, 1, 3]
    for i, source in enumerate(SENTENCES):
        words = LABELS[i, : found.lengths[i]]
        logits = model(torch.tensor([source]), labels=words[None]).logits[0]
        expected = logits.double().log_softmax(-1).gather(1, words[:, None])[:, 0]
        assert_close(found.token_log_probs[i, : len(words)].double(), expected, rtol=0, atol=1e-5)
        assert (found.token_log_probs[i, len(words) :] == 0).all()
        assert found.log_probs[i].item() == pytest.approx(expected.sum().item(), abs=1e-5)


def test_a_translation_without_an_end_token_is_scored_as_it_is(model):
    assert score(model, SOURCE[:1], torch.tensor([[5, 6, 7]])).lengths.tolist() == [3]


def test_computing_logits_in_slices_does_not_change_the_log_probs(model, monkeypatch):
    expected = score(model, SOURCE, LABELS)
    monkeypatch.setattr(likelihood, "find_slice_length", lambda *_: 3)
    assert_close(score(model, SOURCE, LABELS).token_log_probs, expected.token_log_probs)


@pytest.mark.parametrize(("dtype", "expected"), [(torch.float64, torch.float64), (torch.bfloat16, torch.float32)])
def test_scores_have_at_least_the_precision_of_float32(build_tiny_model, dtype, expected):
    found = score(build_tiny_model(dtype=dtype), SOURCE, LABELS)
    assert found.log_probs.dtype == found.scores.dtype == expected


def test_a_translation_without_tokens_is_refused(model):
    with pytest.raises(ValueError, match="got a row of padding alone"):
        score(model, SOURCE[:2], torch.tensor([[5, 2], [-100, -100]]))


# Text and files


TEXT = [("a dog runs", "two cats"), ("", "a dog"), ("two cats sleep on the big bed", ""), ("a dog", "the dog")]


@pytest.fixture(scope="module")
def translator(build_translator):
    return build_translator([line for pair in TEXT for line in pair] * 3)


@pytest.fixture(scope="module")
def expected(translator) -> list[tuple[float, int, float]]:
    """Return the log-probability, length and score of each pair of TEXT, scored in a batch of its own."""
    model, tokenizer = translator
    results = []
    for source, target in TEXT:
        found = score(model, **tokenizer([source], text_target=[target], return_tensors="pt"))
        results.append((found.log_probs.item(), found.lengths.item(), found.scores.item()))
    return results


@pytest.mark.parametrize(
    ("tokens_per_batch", "window", "side"),
    [(8_192, 4_096, "right"), (8_192, 3, "right"), (1, 4_096, "right"), (8_192, 4_096, "left")],
)
def test_pairs_are_scored_in_order_for_any_batch_size_and_side_of_the_padding(
    translator, expected, monkeypatch, tokens_per_batch, window, side
):
    monkeypatch.setattr(likelihood, "PAIRS_PER_WINDOW", window)
    monkeypatch.setattr(translator[1], "padding_side", side)
    found = score_pairs(*translator, TEXT, tokens_per_batch=tokens_per_batch)
    assert_close(torch.tensor(list(found)), torch.tensor(expected), rtol=0, atol=1e-4)


def test_files_are_scored_on_the_command_line(translator, expected, tmp_path, capsys):
    for part in translator:
        part.save_pretrained(tmp_path / "model")
    source, target = tmp_path / "a.en", tmp_path / "a.de"
    for file, sentences in zip((source, target), zip(*TEXT, strict=True), strict=True):
        write_lines(file, sentences)
    command = f"score --model {tmp_path}/model --source {source} --target {target}"
    vaswani(command)
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    found = [(float(log_prob), int(length), float(score)) for log_prob, length, score in rows]
    assert found == [pytest.approx(row, abs=1e-4) for row in expected]
    vaswani(f"{command} --length_penalty 0")
    for line in capsys.readouterr().out.splitlines():
        log_prob, _, score = line.split("\t")
        assert log_prob == score
