"""Adapters of peft can be trained, used to translate, saved, loaded and merged."""

import pytest
import torch
from safetensors import safe_open
from tiny_training import assert_close
from torch.nn.functional import cross_entropy

from vaswani_transformer.runs import find_model

peft = pytest.importorskip("peft")

TARGETS = ["q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"]
SOURCE = torch.tensor([[5, 6, 7, 8, 2], [9, 10, 2, 1, 1]])
LABELS = torch.tensor([[11, 12, 13, 2], [14, 2, -100, -100]])


def adapt(model, *, targets=TARGETS):
    """Return the model with LoRA of rank 3. Its matrices are random, because peft's initial adapter changes nothing."""
    sizes = {"r": 3, "lora_alpha": 6}
    config = peft.LoraConfig(task_type="SEQ_2_SEQ_LM", **sizes, target_modules=targets, init_lora_weights=False)
    torch.manual_seed(1)
    return peft.get_peft_model(model, config).eval()


def score(model):
    with torch.no_grad():
        return model(input_ids=SOURCE, labels=LABELS)


@pytest.fixture
def build_base(build_tiny_model):
    """Return a function that builds the same model at each call, with biases in attention."""
    return lambda **changes: build_tiny_model(dropout=0, attention_bias=True, noise=0.3, **changes)


@pytest.mark.parametrize("training", [False, True])
def test_a_merged_model_computes_the_same_as_the_adapted_model(build_base, training):
    adapted = adapt(build_base()).train(training)
    before = adapted(input_ids=SOURCE, labels=LABELS, skip_logits=False)
    merged = adapted.merge_and_unload().train(training)
    after = merged(input_ids=SOURCE, labels=LABELS, skip_logits=False)
    assert_close([after.logits, after.loss], [before.logits, before.loss], tolerance=1e-5)
    assert (score(build_base()).logits - score(merged.eval()).logits).abs().max() > 0.1


def test_training_gives_a_gradient_to_every_adapter(build_base):
    adapted = adapt(build_base()).train()
    adapted(input_ids=SOURCE, labels=LABELS).loss.backward()
    trained = {name: parameter for name, parameter in adapted.named_parameters() if parameter.requires_grad}
    # Each of the 2 encoder layers has one attention, and each of the 4 decoder layers has two. LoRA adds two matrices
    # to each projection. The 10 attentions have 4 projections each, and the 6 feed-forward networks have 2 each.
    assert len(trained) == 2 * (4 * 10 + 2 * 6)
    assert all("lora_" in name and parameter.grad.abs().max() > 0 for name, parameter in trained.items())


@pytest.mark.parametrize("num_beams", [1, 4])
def test_an_adapted_model_translates_like_the_merged_model(build_base, num_beams):
    adapted = adapt(build_base())
    options = {"num_beams": num_beams, "max_new_tokens": 12}
    translated = adapted.generate(input_ids=SOURCE, **options)
    plain = build_base().generate(SOURCE, **options)
    assert not torch.equal(translated, plain)
    with adapted.disable_adapter():
        assert torch.equal(adapted.generate(input_ids=SOURCE, **options), plain)
    assert torch.equal(translated, adapted.merge_and_unload().generate(SOURCE, **options))


@pytest.mark.parametrize(
    "options", [{"num_beams": 1}, {"num_beams": 4}, {"num_beams": 1, "do_sample": True, "top_k": 1}]
)
def test_each_sentence_of_a_batch_may_have_an_adapter_of_its_own(build_base, options):
    adapted = adapt(build_base())
    adapted.add_adapter("second", adapted.peft_config["default"])

    def translate(names):
        rows = adapted.generate(input_ids=SOURCE.repeat(2, 1), max_length_offset=3, adapter_names=names, **options)
        return [row[row != 1].tolist() for row in rows]

    names = ["default", "second", "__base__", "default"]
    found = translate(names)
    assert found == [translate([name] * 4)[row] for row, name in enumerate(names)]
    assert found[0] != found[2]


def test_an_adapter_is_saved_without_its_model(build_base, tmp_path):
    adapted = adapt(build_base())
    # Nothing that a search keeps in the model may be saved with the adapter.
    adapted.generate(input_ids=SOURCE, max_new_tokens=3)
    adapted.save_pretrained(tmp_path)
    with safe_open(tmp_path / "adapter_model.safetensors", "pt") as file:
        assert all("lora_" in name for name in file.keys())  # noqa: SIM118 - not a mapping
    loaded = peft.PeftModel.from_pretrained(build_base(), tmp_path)
    assert isinstance(loaded, peft.PeftModelForSeq2SeqLM)
    assert torch.equal(score(loaded).logits, score(adapted).logits)
    with pytest.raises(FileNotFoundError, match="holds only an adapter of peft: call merge_and_unload"):
        find_model(tmp_path)


def test_an_adapter_of_the_embeddings_is_multiplied_by_sqrt_d_model_like_the_embeddings(build_base):
    adapted = adapt(build_base(tie_word_embeddings=False), targets=["embed_tokens"])
    before = score(adapted).logits
    assert (score(build_base(tie_word_embeddings=False)).logits - before).abs().max() > 0.1
    assert_close(score(adapted.merge_and_unload()).logits, before, tolerance=1e-5)


@pytest.mark.parametrize("training", [False, True])
def test_an_adapted_output_layer_is_used_in_the_loss(build_base, training):
    model = adapt(build_base(tie_word_embeddings=False, label_smoothing=0.1), targets=["lm_head"]).train(training)
    logits = model(input_ids=SOURCE, labels=LABELS, skip_logits=False).logits.flatten(0, 1)
    expected = cross_entropy(logits, LABELS.flatten(), label_smoothing=0.1 if training else 0)
    assert_close(model(input_ids=SOURCE, labels=LABELS, skip_logits=True).loss, expected, tolerance=1e-5)


def test_a_search_begins_with_the_trained_prefix_of_prefix_tuning(build_base):
    sizes = {"num_layers": 4, "token_dim": 12, "num_attention_heads": 3}
    config = peft.PrefixTuningConfig(task_type=peft.TaskType.SEQ_2_SEQ_LM, num_virtual_tokens=3, **sizes)
    adapted = peft.get_peft_model(build_base(d_k=4, d_v=4), config).eval()
    torch.manual_seed(1)
    with torch.no_grad():
        adapted.prompt_encoder["default"].embedding.weight.normal_(std=3.0)
    outputs = {"output_logits": True, "return_dict_in_generate": True}
    found = adapted.generate(input_ids=SOURCE, num_beams=1, max_new_tokens=5, **outputs)
    inputs = {"input_ids": SOURCE, "decoder_input_ids": found.sequences[:, :-1]}
    expected = adapted(**inputs).logits
    assert_close(torch.stack(found.logits, dim=1), expected, tolerance=1e-5)
    assert (build_base(d_k=4, d_v=4)(**inputs).logits - expected).abs().max() > 0.1
