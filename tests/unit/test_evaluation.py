import math
import shutil

import pytest

from vaswani_transformer import loading
from vaswani_transformer.evaluation import pairs as scored_pairs
from vaswani_transformer.evaluation.pairs import compute_perplexity, score_pairs
from vaswani_transformer.evaluation.scores import compute_bleu
from vaswani_transformer.loading import fingerprint_model, load_translator
from vaswani_transformer.translation.translator import Hypothesis, Translator

SENTENCES = ["a dog runs", "", "two cats sleep on the big bed", " ", "a dog", "the dog runs and runs"]


@pytest.fixture(scope="module")
def translator(build_translator):
    return build_translator(SENTENCES * 3)


@pytest.fixture
def saved(build_translator, tmp_path):
    build_translator(SENTENCES * 3, folder=tmp_path / "run" / "model")
    return tmp_path / "run" / "model"


def test_perplexity_is_that_of_teacher_forcing_whatever_the_batches(translator):
    model, tokenizer = translator
    pairs = [("a dog runs", "two cats"), ("a dog", "the big bed and the dog"), ("cats", "a")]
    nll, count = 0.0, 0
    for source, target in pairs:
        inputs = tokenizer([source], text_target=[target], return_tensors="pt")
        logits = model(**inputs).logits[0].double().log_softmax(-1)
        nll -= logits.gather(1, inputs["labels"][0][:, None]).sum().item()
        count += inputs["labels"].numel()
    assert compute_perplexity(model, tokenizer, pairs) == pytest.approx(math.exp(nll / count), rel=1e-5)
    assert compute_perplexity(model, tokenizer, pairs, tokens_per_batch=8) == pytest.approx(math.exp(nll / count))


def test_long_lines_are_cut_on_both_sides_with_a_warning(translator, monkeypatch):
    model, tokenizer = translator
    monkeypatch.setattr(scored_pairs, "MOST_SOURCE_TOKENS", 5)
    fits, long = "a a a a", "a a a a a a"
    assert [len(tokenizer(text).input_ids) for text in (fits, long)] == [5, 7]
    with pytest.warns(UserWarning, match="sources and targets cut to their first 5 tokens: 3. Split them"):
        cut = list(score_pairs(model, tokenizer, [(long, "a"), (fits, fits), (long, long)]))
    whole = list(score_pairs(model, tokenizer, [(fits, "a"), (fits, fits), (fits, fits)]))
    assert cut == [pytest.approx(score, rel=1e-5) for score in whole]


def test_bleu_of_a_model_is_that_of_its_translations(translator, monkeypatch):
    answers = {"ein Hund läuft schnell nach Hause": "a dog runs home fast", "zwei": "two"}

    def translate(self, batch):
        sources = self.tokenizer.batch_decode(batch.ids, skip_special_tokens=True)
        return [[Hypothesis(answers[source])] for source in sources]

    monkeypatch.setattr(Translator, "translate", translate)
    assert compute_bleu(*translator, answers.items()) == pytest.approx(100)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_half_written_folder_is_refused_with_what_it_lacks(saved, name):
    (saved / name).write_bytes((saved / name).read_bytes()[:-9])
    with pytest.raises((ValueError, OSError), match=rf"holds a damaged file|{name}"):
        load_translator(saved)
    (saved / name).unlink()
    with pytest.raises(FileNotFoundError, match=rf"is not a whole model: {name} missing"):
        load_translator(saved)


def test_a_model_has_one_fingerprint_wherever_it_lies_and_another_when_a_part_changes(saved, tmp_path, monkeypatch):
    fingerprint = fingerprint_model(saved)
    shutil.copytree(saved.parent, tmp_path / "copy")
    (saved / "README.md").write_text("a card")
    monkeypatch.setattr(loading, "hf_hub_download", lambda name, file, **_: str(saved / file))  # as in the cache
    for name in (saved, str(tmp_path / "copy"), "owner/name"):
        assert fingerprint_model(name) == fingerprint
    found = {fingerprint}
    for name in ("model.safetensors", "tokenizer.json", "generation_config.json"):
        content = (saved / name).read_bytes()
        is_json = name.endswith(".json")
        (saved / name).write_bytes(content + b" " if is_json else content[:-1] + bytes([content[-1] ^ 1]))
        found.add(fingerprint_model(saved))
    assert len(found) == 4
