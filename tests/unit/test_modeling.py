"""The whole model: size, tied embeddings, initialisation, loss and forward pass."""

import math
from unittest import mock

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn.functional import cross_entropy
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from vaswani_transformer import VaswaniConfig, VaswaniForConditionalGeneration
from vaswani_transformer.kernels.cross_entropy import sum_loss_by_slices
from vaswani_transformer.training.recipes import RECIPES

# Parameters in millions, for the rows of table 3 for which the paper gives a number.
PAPER_PARAMETERS = {
    "base": 65,
    "B1": 58,
    "B2": 60,
    "C1": 36,
    "C2": 50,
    "C3": 80,
    "C4": 28,
    "C5": 168,
    "C6": 53,
    "C7": 90,
    "big": 213,
}
# Tokens: 0 starts a target, 1 is padding, and 2 is </s>. A label of -100 is not counted.
SOURCE = torch.tensor([[5, 9, 12, 30, 7, 2], [8, 3, 21, 2, 1, 1]])
LABELS = torch.tensor([[14, 6, 33, 8, 2], [25, 3, 2, -100, -100]])
SHIFTED = torch.tensor([[0, 14, 6, 33, 8], [0, 25, 3, 2, 1]])
INPUTS = {"input_ids": SOURCE, "decoder_input_ids": SHIFTED}


# Size


@pytest.mark.parametrize(("row", "millions"), PAPER_PARAMETERS.items())
def test_models_of_table_3_have_about_as_many_parameters_as_in_the_paper(row, millions):
    with torch.device("meta"):
        model = VaswaniForConditionalGeneration(VaswaniConfig(vocab_size=37_000, **RECIPES[f"table3_{row}"].model))
    assert model.num_parameters() / 1e6 == pytest.approx(millions, rel=0.07)


# Tying


def embeddings(model) -> list[torch.Tensor]:
    """Return three weights: the embeddings of the source, those of the target, and the output projection."""
    encoder, decoder = model.model.encoder, model.model.decoder
    return [layer.weight for layer in (encoder.embed_tokens, decoder.embed_tokens, model.lm_head)]


def test_tied_embeddings_are_one_tensor(tiny_model, tmp_path):
    assert len({tensor.data_ptr() for tensor in (*embeddings(tiny_model), tiny_model.model.shared.weight)}) == 1
    tiny_model.save_pretrained(tmp_path)
    stored = [name for name, weight in load_file(tmp_path / "model.safetensors").items() if weight.shape == (37, 12)]
    assert stored == ["model.shared.weight"]


def test_tied_embeddings_get_the_sum_of_three_gradients(build_tiny_model):
    options = {"dropout": 0, "attention_bias": True, "output_bias": True}
    tied = build_tiny_model(**options)
    untied = build_tiny_model(**options, tie_word_embeddings=False)
    untied.load_state_dict({name: tied.state_dict()[name] for name in untied.state_dict()})
    for model in (tied, untied):
        model.train()(SOURCE, labels=LABELS).loss.backward()
        assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []
    assert_close(tied.model.shared.weight.grad, sum(tensor.grad for tensor in embeddings(untied)))


@pytest.mark.parametrize("size", [31, 40])
@pytest.mark.parametrize(("is_tied", "num_tensors"), [(True, 1), (False, 3)])
def test_a_resized_vocabulary_stays_tied_or_untied_and_keeps_its_logits(build_tiny_model, is_tied, num_tensors, size):
    model = build_tiny_model(tie_word_embeddings=is_tied)
    inputs = {name: tokens % 31 for name, tokens in INPUTS.items()}
    before = model(**inputs).logits[..., :size]
    model.resize_token_embeddings(size)
    assert len({tensor.data_ptr() for tensor in embeddings(model)}) == num_tensors
    assert [len(tensor) for tensor in embeddings(model)] == [model.config.vocab_size] * 3 == [size] * 3
    assert_close(model(**inputs).logits[..., :37], before)


# Initialisation


@pytest.fixture(scope="module")
def fresh(build_tiny_model):
    """Return a newly initialised model, large enough for statistics: its smallest matrix has 64 x 64 entries."""
    return build_tiny_model(
        vocab_size=2000,
        d_model=64,
        d_ff=96,
        num_heads=4,
        d_k=16,
        d_v=24,
        encoder_layers=1,
        decoder_layers=2,
        attention_bias=True,
        output_bias=True,
        position_embedding_type="learned",
    )


def test_projections_are_initialised_by_glorot_s_uniform_distribution(fresh):
    linear = [module for module in fresh.modules() if isinstance(module, nn.Linear)]
    projections = [module for module in linear if module is not fresh.lm_head]
    # An attention has four projections, a feed-forward network has two. A decoder layer has two attentions.
    assert len(projections) == 1 * 6 + 2 * 10
    for module in projections:
        bound = math.sqrt(6 / (module.in_features + module.out_features))
        assert 0.99 * bound < module.weight.abs().max().item() <= bound
        assert module.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05)


def test_embeddings_and_learned_positions_are_initialised_by_a_normal_distribution(fresh):
    stacks = (fresh.model.encoder, fresh.model.decoder)
    for matrix in (fresh.lm_head.weight, *(stack.positions.embedding.weight for stack in stacks)):
        assert matrix.mean().item() == pytest.approx(0, abs=0.002)
        assert matrix.std().item() == pytest.approx(64**-0.5, rel=0.02)
        # The kurtosis of a normal distribution is 3. A uniform distribution would have 1.8.
        assert (matrix / matrix.std()).pow(4).mean().item() == pytest.approx(3, abs=0.1)


def test_biases_start_at_zero_and_norms_at_one(fresh):
    for name, parameter in fresh.named_parameters():
        if name.endswith("bias"):
            assert (parameter == 0).all(), name
        elif "norm" in name:
            assert (parameter == 1).all(), name


# Loss


def test_decoder_inputs_are_the_start_token_and_the_shifted_labels(build_tiny_model):
    model = build_tiny_model(decoder_start_token_id=11)
    labels = LABELS.clone()
    shifted = SHIFTED.clone()
    shifted[:, 0] = 11
    assert torch.equal(model.prepare_decoder_input_ids_from_labels(labels), shifted)
    assert torch.equal(labels, LABELS)
    logits = model(SOURCE, decoder_input_ids=shifted).logits
    assert torch.equal(model(SOURCE, labels=LABELS).logits, logits)
    assert model.generate(SOURCE)[:, 0].tolist() == [11, 11]


def test_labels_padded_on_the_left_are_refused_where_data_collators_ask_for_decoder_inputs(build_tiny_model):
    model = build_tiny_model()
    without_labels = torch.full((1, 4), -100)
    assert model.prepare_decoder_input_ids_from_labels(without_labels).tolist() == [[0, 1, 1, 1]]
    with pytest.raises(ValueError, match="padded on the left: set tokenizer"):
        model.prepare_decoder_input_ids_from_labels(torch.tensor([[5, 6, 7, 8], [-100, -100, 7, 8]]))


def test_given_decoder_inputs_are_used_unchanged_if_the_labels_of_a_prompt_are_masked(build_tiny_model):
    model = build_tiny_model(noise=0.4)
    inputs = torch.tensor([[0, 30, 5, 6]])
    found = model(SOURCE[:1], decoder_input_ids=inputs, labels=torch.tensor([[-100, 5, 6, 2]]))
    assert_close(found.logits, model(SOURCE[:1], decoder_input_ids=inputs).logits)


@pytest.mark.parametrize("has_package", [True, False])
def test_the_loss_is_smoothed_in_training_mode_only(build_tiny_model, monkeypatch, has_package):
    by_slices = mock.Mock(wraps=sum_loss_by_slices)
    # In the copy of the code that is uploaded with a model, `faster` is None.
    faster = mock.Mock(sum_loss=by_slices) if has_package else None
    monkeypatch.setattr(VaswaniForConditionalGeneration, "faster", faster)
    model = build_tiny_model(dropout=0, label_smoothing=0.2, output_bias=True, noise=0.3)
    logits = model(**INPUTS).logits.flatten(0, 1)
    smooth, plain = (cross_entropy(logits, LABELS.flatten(), label_smoothing=epsilon) for epsilon in (0.2, 0.0))
    evaluated = model(SOURCE, labels=LABELS)
    trained = model.train()(SOURCE, labels=LABELS)
    assert_close(evaluated.loss, plain)
    assert_close(trained.loss, smooth)
    assert_close(trained.nll_loss, plain)
    assert evaluated.nll_loss is None
    assert by_slices.called == has_package


@pytest.mark.parametrize("kind", ["forward_hook", "forward_pre_hook"])
def test_the_loss_calls_the_hooks_of_the_head(tiny_model, kind):
    calls = []
    getattr(tiny_model.lm_head, f"register_{kind}")(lambda *_: calls.append(1))
    tiny_model.train()(SOURCE, labels=LABELS)
    assert calls == [1]


@pytest.mark.parametrize("training", [True, False])
def test_with_labels_logits_are_omitted_by_default_in_training_mode_and_on_request_in_both_modes(tiny_model, training):
    model = tiny_model.train(training)
    assert model(**INPUTS).logits is not None
    for skip, has_logits in ((None, not training), (False, True), (True, False)):
        assert (model(SOURCE, labels=LABELS, skip_logits=skip).logits is not None) == has_logits


@pytest.mark.parametrize("has_gradients", [False, True])
def test_evaluation_with_labels_computes_the_logits_only_once(tiny_model, has_gradients):
    def count(**target):
        with torch.set_grad_enabled(has_gradients), FlopCounterMode(display=False) as counter:
            tiny_model(SOURCE, **target)
        return counter.get_total_flops()

    assert count(labels=LABELS) == count(decoder_input_ids=SHIFTED)


# Forward


def test_a_decoder_without_an_encoded_source_is_a_language_model(tiny_model):
    decoder = tiny_model.get_decoder()
    ids = torch.tensor([[0, 14, 6, 33, 8, 21], [0, 25, 3, 9, 11, 30]])
    expected = decoder(ids).last_hidden_state
    changed = ids.clone()
    changed[:, 4:] = 7
    assert_close(decoder(changed).last_hidden_state[:, :4], expected[:, :4])
    begun = decoder(ids[:, :4], use_cache=True)
    continued = decoder(ids[:, 4:], past_key_values=begun.past_key_values).last_hidden_state
    assert_close(continued, expected[:, 4:], atol=1e-5, rtol=1e-5)


def test_a_tuple_of_encoder_outputs_may_replace_the_source(tiny_model):
    expected = tiny_model(**INPUTS)
    encoded = (expected.encoder_last_hidden_state,)
    mask = (SOURCE != 1).long()
    actual = tiny_model(attention_mask=mask, encoder_outputs=encoded, decoder_input_ids=SHIFTED)
    assert torch.equal(actual.logits, expected.logits)


@pytest.mark.parametrize("changes", [{}, {"position_embedding_type": "learned", "max_position_embeddings": 6}])
def test_embeddings_may_replace_the_tokens(build_tiny_model, changes):
    model = build_tiny_model(noise=0.3, **changes)
    embed = model.get_input_embeddings()
    expected = model(**INPUTS)
    mask = (SOURCE != 1).long()
    actual = model(inputs_embeds=embed(SOURCE), attention_mask=mask, decoder_inputs_embeds=embed(SHIFTED))
    assert torch.equal(actual.logits, expected.logits)
    # Without a mask, positions are counted from 0 to 5, so the learned table of six rows is just large enough.
    alone = model.get_encoder()(inputs_embeds=embed(SOURCE[:1])).last_hidden_state
    assert_close(alone, expected.encoder_last_hidden_state[:1])


def test_giving_both_tokens_and_embeddings_or_neither_is_refused(tiny_model):
    with pytest.raises(ValueError, match="VaswaniEncoder needs exactly one of token ids and embeddings, got both"):
        tiny_model.model.encoder(SOURCE, inputs_embeds=torch.zeros(2, 6, 12))
    with pytest.raises(ValueError, match="VaswaniDecoder needs exactly one of token ids and embeddings, got neither"):
        tiny_model(SOURCE)


@pytest.mark.parametrize("kept", [1, 2, torch.tensor([0, 3])])
def test_logits_to_keep_selects_positions_and_does_not_change_the_loss(tiny_model, kept):
    all_logits = tiny_model(**INPUTS).logits
    kept_logits = tiny_model(**INPUTS, logits_to_keep=kept).logits
    expected = all_logits[:, -kept:] if isinstance(kept, int) else all_logits[:, kept]
    assert_close(kept_logits, expected)
    losses = [tiny_model(SOURCE, labels=LABELS, logits_to_keep=which).loss for which in (0, kept)]
    assert_close(*losses)  # the loss counts all positions


def test_attention_weights_of_an_sdpa_model_equal_the_weights_of_eager_attention(build_tiny_model):
    sdpa = build_tiny_model(noise=0.3)
    eager = build_tiny_model(noise=0.3, attention="eager")
    expected = eager(**INPUTS, output_attentions=True)
    actual = sdpa(**INPUTS, output_attentions=True)
    sizes = {"encoder_attentions": (2, 6, 6), "decoder_attentions": (4, 5, 5), "cross_attentions": (4, 5, 6)}
    for name, (num_layers, num_queries, num_keys) in sizes.items():
        assert torch.stack(actual[name]).shape == (num_layers, 2, 3, num_queries, num_keys)
        assert_close(actual[name], expected[name])
    assert_close(actual.logits, sdpa(**INPUTS).logits)
    assert all((layer[1, :, :, 4:] == 0).all() for layer in actual.encoder_attentions + actual.cross_attentions)


def test_dropout_acts_on_the_sums_of_embeddings_and_positions(build_tiny_model):
    model = build_tiny_model(dropout=0.25, noise=0.3)
    source, target = torch.randint(3, 37, (2, 8, 50))
    inputs = {"input_ids": source, "decoder_input_ids": target, "output_hidden_states": True}
    whole = model.eval()(**inputs)
    dropped = model.train()(**inputs)
    for name in ("encoder_hidden_states", "decoder_hidden_states"):
        before = whole[name][0]
        after = dropped[name][0]
        is_kept = after != 0
        assert is_kept.double().mean().item() == pytest.approx(0.75, abs=0.03)
        assert_close(after[is_kept], before[is_kept] / 0.75)


@pytest.mark.parametrize("depths", [(2, 4), (4, 2)], ids=str)
def test_hidden_states_of_selected_layers_are_recorded_in_stacks_of_any_depth(build_tiny_model, depths):
    model = build_tiny_model(encoder_layers=depths[0], decoder_layers=depths[1])
    every, some = (model(**INPUTS, output_hidden_states=asked) for asked in (True, [0, -2]))
    for name, depth in zip(("encoder_hidden_states", "decoder_hidden_states"), depths, strict=True):
        assert [place for place, states in enumerate(some[name]) if states is not None] == [0, depth - 1]
        assert_close(some[name][depth - 1], every[name][depth - 1])
    assert torch.equal(every.encoder_hidden_states[-1], every.encoder_last_hidden_state)
    assert_close(model.lm_head(every.decoder_hidden_states[-1]), every.logits)


@pytest.mark.parametrize("source", [SOURCE, torch.full((2, 6), 1)], ids=["words", "padding only"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_logits_in_half_precision_are_finite_and_close_to_float32(build_tiny_model, implementation, dtype, source):
    inputs = INPUTS | {"input_ids": source}
    expected = build_tiny_model(attention=implementation)(**inputs).logits
    actual = build_tiny_model(attention=implementation, dtype=dtype)(**inputs).logits
    assert actual.dtype == dtype
    assert actual.isfinite().all()
    assert_close(actual.float(), expected, rtol=0, atol=0.15)


# Gradient checkpointing and compilation


def test_gradient_checkpointing_gives_the_same_gradients(build_tiny_model):
    gradients = []
    calls = []
    for checkpointing in (False, True):
        model = build_tiny_model(dropout=0.3, activation_dropout=0.3, attention_dropout=0.3).train()
        if checkpointing:
            model.activation_checkpointing_enable()
        for stack in (model.model.encoder, model.model.decoder):
            stack.layers[1].feed_forward.register_forward_hook(lambda *_: calls.append(1))
        torch.manual_seed(1)
        model(SOURCE, labels=LABELS).loss.backward()
        gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})
    assert len(calls) == 2 + 2 * 2  # two layers: each runs once without checkpointing, and twice with it
    assert_close(gradients[1], gradients[0])


@pytest.mark.parametrize("training", [False, True])
def test_the_model_compiles_without_graph_breaks(build_tiny_model, training):
    # At a rate of 1e-12, dropout is in the graph but practically never drops a value, so the losses can be compared.
    model = build_tiny_model(dropout=1e-12, encoder_layers=1, decoder_layers=1).train(training)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    expected, actual = (m(SOURCE, labels=LABELS) for m in (model, compiled))
    assert_close(actual.loss, expected.loss)
    if not training:
        assert_close(actual.logits, expected.logits)
