"""Loading models, and evaluating them by perplexity and BLEU."""

import math
import shutil
from functools import partial
from pathlib import Path

import pytest
from shortcuts import TEXTS

from vaswani_transformer import loading
from vaswani_transformer.evaluation import likelihood
from vaswani_transformer.evaluation.likelihood import compute_perplexity, score_pairs
from vaswani_transformer.evaluation.metrics import compute_bleu
from vaswani_transformer.files import digest_file, write_json
from vaswani_transformer.loading import fingerprint_model, load, load_translator
from vaswani_transformer.translation.translator import Hypothesis, Translator


@pytest.fixture(scope="module")
def translator(build_translator):
    return build_translator(TEXTS * 3)


@pytest.fixture
def saved(build_translator, tmp_path):
    folder = tmp_path / "run" / "model"
    build_translator(TEXTS * 3, folder=folder)
    return folder


def test_perplexity_agrees_with_teacher_forcing_for_any_batch_size(translator):
    model, tokenizer = translator
    pairs = [("a dog runs", "two cats"), ("a dog", "the big bed and the dog"), ("cats", "a")]
    nll, count = 0.0, 0
    for source, target in pairs:
        inputs = tokenizer([source], text_target=[target], return_tensors="pt")
        logits = model(**inputs).logits[0].double().log_softmax(-1)
        nll -= logits.gather(1, inputs["labels"][0][:, None]).sum().item()
        count += inputs["labels"].numel()
    assert compute_perplexity(model, tokenizer, pairs) == pytest.approx(math.exp(nll / count), rel=1e-5)
    log_probs, lengths, _ = zip(*score_pairs(model, tokenizer, pairs, tokens_per_batch=8), strict=True)
    assert (sum(log_probs), sum(lengths)) == (pytest.approx(-nll, rel=1e-5), count)


def test_long_sources_and_targets_are_cut_with_a_warning(translator, monkeypatch):
    model, tokenizer = translator
    monkeypatch.setattr(likelihood, "MOST_SOURCE_TOKENS", 5)
    fits, long = "a a a a", "a a a a a a"
    assert [len(tokenizer(text).input_ids) for text in (fits, long)] == [5, 7]
    with pytest.warns(UserWarning, match="3 sources and targets were cut to 5 tokens, </s> included. Split them"):
        cut = list(score_pairs(model, tokenizer, [(long, "a"), (fits, fits), (long, long)]))
    whole = list(score_pairs(model, tokenizer, [(fits, "a"), (fits, fits), (fits, fits)]))
    assert cut == [pytest.approx(score, rel=1e-5) for score in whole]


def test_compute_bleu_scores_the_model_s_translations(translator, monkeypatch):
    answers = {"ein Hund läuft schnell nach Hause": "a dog runs home fast", "zwei": "two"}

    def translate(self, batch):
        sources = self.tokenizer.batch_decode(batch.ids, skip_special_tokens=True)
        return [[Hypothesis(answers[source])] for source in sources]

    monkeypatch.setattr(Translator, "translate", translate)
    assert compute_bleu(*translator, answers.items()) == pytest.approx(100)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_the_error_about_a_model_says_that_a_file_is_damaged_or_which_file_is_missing(saved, name):
    (saved / name).write_bytes((saved / name).read_bytes()[:-9])
    with pytest.raises((ValueError, OSError), match=rf"holds a damaged file|{name}"):
        load_translator(saved)
    (saved / name).unlink()
    with pytest.raises(FileNotFoundError, match=rf"is not a whole model: {name} missing"):
        load_translator(saved)


@pytest.mark.parametrize("make", [lambda path: path.symlink_to("gone"), Path.mkdir])
def test_a_generation_config_that_is_a_broken_link_or_a_folder_is_refused(saved, make):
    # transformers would silently ignore such a file and search with its default settings.
    (saved / "generation_config.json").unlink()
    make(saved / "generation_config.json")
    with pytest.raises(OSError, match=r"generation_config\.json"):
        load(saved)


@pytest.mark.parametrize("change", ["the files are replaced by copies", "the folder is removed"])
def test_a_model_that_changes_while_it_is_loaded_is_refused(saved, monkeypatch, change):
    load_tokenizer = loading.load_tokenizer

    def change_folder(*args, **options):
        shutil.rmtree(saved)
        if change == "the files are replaced by copies":
            write_copy(saved)
        return load_tokenizer(*args, **options)

    write_copy = partial(shutil.copytree, shutil.copytree(saved, saved.with_name("other")))
    monkeypatch.setattr(loading, "load_tokenizer", change_folder)
    with pytest.raises(OSError, match="model changed while it was read, perhaps by a training run: repeat the command"):
        load(saved)


def test_the_newest_checkpoint_of_a_run_is_loaded_and_refused_if_it_is_damaged(saved, capsys):
    checkpoints = saved.parent / "checkpoints"
    for name in ("step-00000002", "stopped-00000003"):
        shutil.copytree(saved, checkpoints / name)
        write_json(checkpoints / name / "COMPLETE", {"files": {"config.json": digest_file(saved / "config.json")}})
    shutil.rmtree(saved)
    assert load(saved.parent).folder == checkpoints / "stopped-00000003"
    notice = f"{saved.parent} has no final model yet: its newest checkpoint is used (stopped-00000003)\n"
    assert capsys.readouterr().err.startswith(notice)
    (checkpoints / "stopped-00000003" / "config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"stopped-00000003/config\.json is damaged: copy the file back, or remove"):
        load(saved.parent)
    shutil.rmtree(checkpoints)
    (saved.parent / "recipe.json").write_text("{}")
    message = r"the run .* has no checkpoint and no model/config.json yet: train until it has one"
    with pytest.raises(FileNotFoundError, match=message):
        load(saved.parent)


def test_a_fingerprint_depends_on_the_files_of_a_model_and_not_on_their_folder_or_card(saved, tmp_path):
    fingerprint = fingerprint_model(saved)
    shutil.copytree(saved.parent, tmp_path / "copy")
    (saved / "README.md").write_text("a card")
    for name in (saved, saved.parent, str(tmp_path / "copy")):
        assert load(name).fingerprint == fingerprint
    found = {fingerprint}
    for name in ("model.safetensors", "tokenizer.json", "generation_config.json"):
        content = (saved / name).read_bytes()
        is_json = name.endswith(".json")
        (saved / name).write_bytes(content + b" " if is_json else content[:-1] + bytes([content[-1] ^ 1]))
        found.add(fingerprint_model(saved))
    assert len(found) == 4
