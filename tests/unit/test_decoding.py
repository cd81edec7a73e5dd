import pytest
import torch
from torch import nn
from transformers import GenerationConfig
from transformers.cache_utils import DynamicCache, EncoderDecoderCache, StaticCache

from vaswani_transformer import VaswaniForConditionalGeneration
from vaswani_transformer.model import steps_vaswani as decoding_vaswani
from vaswani_transformer.model.layers_vaswani import fused_attention
from vaswani_transformer.model.steps_vaswani import BeamSteps, ForwardSteps, LayerSteps

SOURCE = torch.tensor([[9, 2, 1, 1, 1], [5, 6, 7, 8, 2], [21, 9, 30, 2, 1]])
NUM_BEAMS = 4


def prepare(model, source: torch.Tensor = SOURCE) -> dict:
    """What `generate` hands to a search."""
    mask = (source != 1).long()
    return {
        "encoder_outputs": model.get_encoder()(source, attention_mask=mask),
        "attention_mask": mask,
        "past_key_values": EncoderDecoderCache(DynamicCache(config=model.config), DynamicCache(config=model.config)),
        "use_cache": True,
        "logits_to_keep": 1,
    }


def config_of(num_beams: int = NUM_BEAMS) -> GenerationConfig:
    return GenerationConfig(num_beams=num_beams)


@torch.no_grad()
def compare(
    model, prompt: list[int], *, source: torch.Tensor = SOURCE, num_steps: int = 6, leaving_at: int = 3
) -> None:
    """Let beams change places at random, and the middle sentence leave: both kinds of steps give the same logits."""
    torch.manual_seed(0)
    kinds = [kind(model, config_of(), prepare(model, source)) for kind in (BeamSteps, ForwardSteps)]
    tokens = torch.tensor([prompt] * len(source) * NUM_BEAMS)
    for step in range(num_steps):
        actual, expected = (steps(tokens) for steps in kinds)
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
        num_open = len(tokens) // NUM_BEAMS
        beams = torch.randint(NUM_BEAMS, (num_open, NUM_BEAMS))
        staying = torch.tensor([0, 2]) if step == leaving_at else None
        kept = torch.arange(num_open) if staying is None else staying
        tokens = tokens[(kept[:, None] * NUM_BEAMS + beams[kept]).flatten()]
        tokens = torch.cat([tokens, torch.randint(3, 37, (len(tokens), 1))], dim=1)
        for steps in kinds:
            steps.follow(beams, staying)


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
@pytest.mark.parametrize("prompt", [[0], [0, 5, 6]], ids=["start only", "prompt"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"position_embedding_type": "learned", "attention_bias": True, "output_bias": True},
        {"position_layout": "concatenated", "tie_word_embeddings": False, "activation_function": "gelu"},
    ],
    ids=["paper", "biases", "others"],
)
def test_both_kinds_of_steps_give_the_same_logits(build_tiny_model, kernel, prompt, changes):
    compare(build_tiny_model(noise=0.4, attention=kernel, **changes), prompt)


def test_a_memory_makes_room_as_often_as_needed(build_tiny_model, monkeypatch):
    monkeypatch.setattr(decoding_vaswani, "ROOM", 1)
    compare(build_tiny_model(noise=0.4), [0], num_steps=9, leaving_at=5)


@pytest.mark.parametrize(("length", "count"), [(7, 0), (8, 8), (15, 1), (16, 0), (17, 0), (31, 1)])
def test_a_source_that_nearly_fills_its_registers_gets_idle_keys(length, count):
    assert decoding_vaswani._count_idle_keys(torch.zeros(2, length, 4)) == count


@pytest.mark.parametrize("length", [7, 8, 15, 16, 25])
@pytest.mark.parametrize("num_padded", [0, 4])
def test_idle_keys_of_the_source_change_nothing(build_tiny_model, length, num_padded):
    source = torch.randint(3, 37, (3, length))
    source[0, length - num_padded :] = 1
    compare(build_tiny_model(noise=0.4), [0], source=source)


def test_keys_that_no_beam_goes_on_from_are_forgotten(build_tiny_model, monkeypatch):
    monkeypatch.setattr(decoding_vaswani, "FEW_KEYS", 1)
    forget, forgotten = BeamSteps._forget_keys, []

    def count(self, mask):
        kept = forget(self, mask)
        forgotten.append(mask.shape[-1] - kept.shape[-1])
        assert all(layer.length == kept.shape[-1] for layer in self.layers)
        return kept

    monkeypatch.setattr(BeamSteps, "_forget_keys", count)
    compare(build_tiny_model(noise=0.4), [0, 5, 6], num_steps=16, leaving_at=7)
    assert len(forgotten) > 2
    assert min(forgotten) > 0


def test_a_layer_remembers_everything_in_the_order_it_came(tiny_model):
    encoding = torch.randn(2, 6, tiny_model.config.d_model)
    layer = LayerSteps(tiny_model.model.decoder.layers[0], fused_attention, encoding, num_idle=0, num_beams=3)
    num_heads, d_k = 3, 5
    prompt = torch.randn(2, num_heads, 3, d_k)
    layer.remember(prompt, prompt + 1)
    layer.num_beams = 4
    steps = torch.randn(40, 2, num_heads, 4, d_k)
    for count, step in enumerate(steps, start=1):
        keys, values = layer.remember(step, step + 1)
        expected = torch.cat([prompt, *steps[:count]], dim=2)
        assert torch.equal(keys, expected)
        assert torch.equal(values, expected + 1)


def test_the_prompt_is_read_once_a_sentence(build_tiny_model):
    model = build_tiny_model()
    rows = []
    model.model.decoder.layers[0].self_attention.k_proj.register_forward_hook(
        lambda _, inputs, output: rows.append(output.shape[:-1].numel())
    )
    model.generate(SOURCE, num_beams=NUM_BEAMS, max_new_tokens=3)
    assert rows == [3, 12, 12]


def test_another_projection_is_called_like_the_first(build_tiny_model):
    class Adapted(nn.Module):  # as adapters wrap a layer
        def __init__(self, inner: nn.Linear):
            super().__init__()
            self.inner = inner
            self.down = nn.Linear(inner.in_features, 2, bias=False)
            self.up = nn.Linear(2, inner.out_features, bias=False)

        def forward(self, x):
            return self.inner(x) + self.up(self.down(x))

    model = build_tiny_model(noise=0.4)
    for layer in model.model.decoder.layers:
        layer.self_attention.q_proj = Adapted(layer.self_attention.q_proj)
        layer.feed_forward.fc1 = Adapted(layer.feed_forward.fc1)
    assert BeamSteps.suit(model, config_of(), prepare(model))
    compare(model, [0])


def test_a_source_that_is_hidden_altogether_tells_nothing(build_tiny_model):
    source = SOURCE.clone()
    source[1] = 1
    compare(build_tiny_model(noise=0.4), [0], source=source)


def test_autocast_changes_nothing(build_tiny_model):
    with torch.autocast("cpu", torch.bfloat16):
        compare(build_tiny_model(noise=0.4), [0])


@torch.no_grad()
def test_weights_that_change_between_searches_are_read_anew(build_tiny_model):
    model, other = build_tiny_model(noise=0.4), build_tiny_model(noise=0.4, seed=1)
    before = model.generate(SOURCE, max_new_tokens=6)
    for parameter, new in zip(model.parameters(), other.parameters(), strict=True):
        parameter.data.copy_(new)
    after = model.generate(SOURCE, max_new_tokens=6)
    assert torch.equal(after, other.generate(SOURCE, max_new_tokens=6))
    assert not torch.equal(after, before)


def test_a_model_that_recomputes_its_layers_in_training_searches_all_the_same(build_tiny_model):
    model = build_tiny_model(noise=0.4, dropout=0.0)
    expected = model.generate(SOURCE, max_new_tokens=6)
    model.train()
    model.activation_checkpointing_enable()
    assert torch.equal(model.generate(SOURCE, max_new_tokens=6), expected)


def test_a_search_in_inference_mode_leaves_weights_that_can_be_trained(build_tiny_model):
    model = build_tiny_model()
    with torch.inference_mode():
        model.generate(input_ids=SOURCE)
    assert not any(parameter.is_inference() for parameter in model.parameters())
    model(input_ids=SOURCE, labels=SOURCE).loss.backward()
    assert model.lm_head.weight.grad.isfinite().all()


def test_a_model_in_training_mode_is_searched_with_its_dropout(build_tiny_model):
    model = build_tiny_model(noise=0.4, dropout=0.5).train()
    assert not BeamSteps.suit(model, config_of(), prepare(model))


def test_results_are_ordinary_tensors(build_tiny_model):
    found = build_tiny_model().generate(
        SOURCE, max_new_tokens=4, return_dict_in_generate=True, output_scores=True, output_logits=True
    )
    tensors = (found.sequences, found.sequences_scores, found.beam_indices, *found.scores, *found.logits)
    assert not any(tensor.is_inference() for tensor in tensors)


# When the parts are called


def test_the_usual_search_suits(build_tiny_model):
    model = build_tiny_model()
    assert BeamSteps.suit(model, config_of(), prepare(model))
    assert BeamSteps.suit(model, config_of(), prepare(model) | {"output_attentions": False, "labels": None})


@pytest.mark.parametrize(("name", "value"), [("attention_window", 3), ("_attn_implementation", "flex_attention")])
def test_another_attention_does_not_suit(build_tiny_model, name, value):
    model = build_tiny_model()
    prepared = prepare(model)
    setattr(model.config, name, value)
    assert not BeamSteps.suit(model, config_of(), prepared)


@pytest.mark.parametrize(
    "option", [{"decoder_attention_mask": torch.ones(12, 1)}, {"output_attentions": True}, {"anything": 1}], ids=str
)
def test_other_options_do_not_suit(build_tiny_model, option):
    model = build_tiny_model()
    assert not BeamSteps.suit(model, config_of(), prepare(model) | option)


def test_very_many_beams_do_not_suit(build_tiny_model):
    model = build_tiny_model()
    assert BeamSteps.suit(model, config_of(32), prepare(model))
    assert not BeamSteps.suit(model, config_of(33), prepare(model))


def test_another_cache_does_not_suit(build_tiny_model):
    model = build_tiny_model()
    own, offloaded = DynamicCache(config=model.config), DynamicCache(config=model.config, offloading=False)
    offloaded.offloading = True
    given = EncoderDecoderCache(DynamicCache(), DynamicCache())
    given._is_user_defined = True  # as `generate` marks it
    static = StaticCache(config=model.config, max_cache_len=9)
    for cache in (None, own, given, EncoderDecoderCache(offloaded, own), EncoderDecoderCache(static, own)):
        assert not BeamSteps.suit(model, config_of(), prepare(model) | {"past_key_values": cache})


def parts_of(model) -> dict[str, nn.Module]:
    layer = model.model.decoder.layers[1]
    return {
        "model": model,
        "body": model.model,
        "decoder": model.model.decoder,
        "layer": layer,
        "self-attention": layer.self_attention,
        "encoder-decoder attention": layer.cross_attention,
    }


@pytest.mark.parametrize("part", ["model", "body", "decoder", "layer", "self-attention", "encoder-decoder attention"])
@pytest.mark.parametrize("kind", ["forward", "forward_pre"])
def test_a_hook_is_called_at_each_step(build_tiny_model, part, kind):
    model, calls = build_tiny_model(), []
    expected = model.generate(SOURCE, max_new_tokens=5)
    getattr(parts_of(model)[part], f"register_{kind}_hook")(lambda *_: calls.append(1))
    assert torch.equal(model.generate(SOURCE, max_new_tokens=5), expected)
    assert len(calls) == 5


def test_a_hook_on_the_activation_changes_the_search(build_tiny_model):
    model = build_tiny_model(noise=0.4)
    for layer in model.model.decoder.layers:
        layer.feed_forward.activation.register_forward_hook(lambda module, inputs, output: 1 - output)
    recorded = {"output_scores": True, "return_dict_in_generate": True, "max_new_tokens": 5}
    found = model.generate(SOURCE, **recorded)
    model.model.decoder.register_forward_hook(lambda *_: None)  # forward is called as a whole
    expected = model.generate(SOURCE, **recorded)
    assert torch.equal(found.sequences, expected.sequences)
    torch.testing.assert_close(found.sequences_scores, expected.sequences_scores)


def test_logits_that_a_hook_has_seen_stay_what_they_were(build_tiny_model):
    model, seen = build_tiny_model(), []
    model.lm_head.register_forward_hook(lambda module, inputs, logits: seen.append((logits, logits.clone())))
    model.generate(SOURCE, max_new_tokens=5)
    assert len(seen) == 5
    assert all(torch.equal(logits, copy) for logits, copy in seen)


@pytest.mark.parametrize("part", ["model", "body", "decoder", "layer", "self-attention", "encoder-decoder attention"])
def test_a_replaced_forward_is_called_at_each_step(build_tiny_model, part):
    model, calls = build_tiny_model(), []
    module = parts_of(model)[part]
    own = module.forward

    def counted(*args, **kwargs):
        calls.append(1)
        return own(*args, **kwargs)

    module.forward = counted
    model.generate(SOURCE, max_new_tokens=5)
    assert len(calls) == 5


def test_the_forward_of_a_subclass_is_called_at_each_step(build_tiny_model):
    calls = []

    class Counted(VaswaniForConditionalGeneration):
        def forward(self, *args, **kwargs):
            calls.append(1)
            return super().forward(*args, **kwargs)

    Counted(build_tiny_model().config).eval().generate(SOURCE, max_new_tokens=5)
    assert len(calls) == 5


def test_inputs_prepared_otherwise_are_prepared_at_each_step(build_tiny_model):
    model, calls = build_tiny_model(), []
    own = model.prepare_inputs_for_generation

    def counted(*args, **kwargs):
        calls.append(1)
        return own(*args, **kwargs)

    model.prepare_inputs_for_generation = counted
    model.generate(SOURCE, max_new_tokens=5)
    assert len(calls) == 5


def test_a_compiled_part_is_called_at_each_step(build_tiny_model):
    model, calls = build_tiny_model(), []
    module = model.model.decoder.layers[1]

    def counted(*args, **kwargs):
        calls.append(1)
        return module.forward(*args, **kwargs)

    module._compiled_call_impl = counted  # what `module.compile()` sets
    model.generate(SOURCE, max_new_tokens=5)
    assert len(calls) == 5
