"""An engine is a copy of a model for faster searches.

An engine computes what `forward` computes, with the weights that the model had when the engine was built.
"""

import copy
import pickle
from unittest import mock

import pytest
import torch
from shortcuts import PAD, SOURCE, each_case
from tiny_training import assert_close
from torch import nn
from transformers.cache_utils import DynamicCache, EncoderDecoderCache

from vaswani_transformer import pipeline
from vaswani_transformer.engine import steps as engine_steps
from vaswani_transformer.engine.engine import build_engine, find_engine
from vaswani_transformer.engine.obstacles import find_obstacle
from vaswani_transformer.engine.products import PRIVATE_NAMES, Products, find_private
from vaswani_transformer.engine.steps import EngineSteps
from vaswani_transformer.model.search_vaswani import ForwardSteps
from vaswani_transformer.translation.translator import Translator

NUM_BEAMS = 4
SOURCES = {
    "no padding": SOURCE.masked_fill(SOURCE == PAD, 17),
    "padding on the right": SOURCE,
    "padding on the left": SOURCE.flip(1),
    "a sentence of padding alone": torch.tensor([[PAD] * 5, [5, 6, 7, 8, 2], [9, 30, 2, PAD, PAD]]),
}
CONFIGS = {
    "paper": {},
    "learned positions, biases": {"position_embedding_type": "learned", "attention_bias": True, "output_bias": True},
    "untied, 3 + 1 layers, prelu": {
        "position_layout": "concatenated",
        "tie_word_embeddings": False,
        "activation_function": "prelu",
        "encoder_layers": 3,
        "decoder_layers": 1,
    },
    "eager, sinusoids beyond max_position_embeddings": {"attention": "eager", "max_position_embeddings": 1},
}
# The largest allowed |actual - expected| / |expected|, over all rows of a step together. Rows are not compared one by
# one, because in bfloat16 one of twelve rows differed by 0.34 of its norm on one processor, where attention weights
# were almost equal. If an engine confused rows or words, the logits would differ by more than the tolerance.
TOLERANCES = {"float32": 1e-5, "bfloat16": 0.2}
each_dtype = pytest.mark.parametrize("dtype", TOLERANCES)
# Only `forward` returns hidden states, so with these options `generate` decodes by `forward`, without an engine.
RECORDED = {"output_hidden_states": True, "return_dict_in_generate": True}


@pytest.fixture
def model(build_tiny_model):
    return build_tiny_model(noise=0.4)


def assert_near(actual: torch.Tensor, expected: torch.Tensor, dtype: str) -> None:
    """Fail unless two tensors agree within the tolerance of `dtype`."""
    assert (actual - expected).float().norm() <= TOLERANCES[dtype] * expected.float().norm()


@torch.no_grad()
def compare(engine, model, *, dtype="float32", source=SOURCE, prompt=(0,), num_steps=6, leaving_at=3) -> None:
    """Fail unless `engine` agrees with the model in `dtype`: in the encoder's output, and in the logits of each step.

    The logits of the model come from its `forward`. Between steps, beams change places at random. After step
    `leaving_at`, the middle sentence leaves the batch.
    """
    torch.manual_seed(0)
    model = copy.deepcopy(model).to(getattr(torch, dtype))
    mask = (source != PAD).long()
    encoded = model.get_encoder()(source, attention_mask=mask)
    encoding = engine.encode(source, mask)
    assert_near(encoding[mask > 0], encoded.last_hidden_state[mask > 0], dtype)
    cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    by_forward = ForwardSteps(model, encoded[0], mask, num_beams=NUM_BEAMS, cache=cache)
    prompts = torch.tensor([prompt] * len(source))
    by_engine, logits = engine.start(encoding, mask, prompt=prompts, num_beams=NUM_BEAMS)
    tokens = prompts.repeat_interleave(NUM_BEAMS, dim=0)
    for step in range(num_steps):
        assert_near(by_engine(tokens) if step else logits, by_forward(tokens), dtype)
        num_open = len(tokens) // NUM_BEAMS
        beams = torch.randint(NUM_BEAMS, (num_open, NUM_BEAMS))
        staying = torch.tensor([0, 2]) if step == leaving_at else None
        kept = torch.arange(num_open) if staying is None else staying
        tokens = tokens[(kept[:, None] * NUM_BEAMS + beams[kept]).flatten()]
        tokens = torch.cat([tokens, torch.randint(3, 37, (len(tokens), 1))], dim=1)
        for steps in (by_engine, by_forward):
            steps.reorder(beams, staying)


@each_dtype
@each_case("changes", CONFIGS)
def test_an_engine_gives_the_same_logits_as_forward(build_tiny_model, changes, dtype):
    model = build_tiny_model(noise=0.4, **changes)
    engine = model.build_engine(dtype=dtype)
    for source in SOURCES.values():
        for prompt in ((0,), (0, 5, 6)):
            compare(engine, model, dtype=dtype, source=source, prompt=prompt)


@each_case("source", SOURCES)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_beams": 1},
        {"num_return_sequences": 4, "decoder_input_ids": torch.tensor([[0, 5, 6]] * 3)},
    ],
    ids=" ".join,
)
def test_a_search_finds_the_same_translations_with_an_engine_as_with_forward(build_ending_model, source, options):
    model = build_ending_model(end_bias=2.0, max_length_offset=6)
    engine = model.build_engine()
    expected = model.generate(source, **options, **RECORDED)
    found = model.generate(source, engine=engine, return_dict_in_generate=True, **options)
    assert torch.equal(found.sequences, expected.sequences)
    assert torch.equal(model.generate(source, engine=engine, **options), expected.sequences)
    assert torch.equal(model.generate(source, **options), expected.sequences)
    assert_close(found.sequences_scores, expected.sequences_scores, tolerance=1e-5)


# Keys that an engine appends or evicts


# An idle key is hidden by the mask. On a CPU keys are appended only if at most 8 are missing to a multiple of 16.
@pytest.mark.parametrize(("length", "count"), [(7, 0), (8, 8), (15, 1), (16, 0), (17, 0), (31, 1)])
@pytest.mark.parametrize("num_padded", [0, 4])
def test_idle_keys_that_round_the_source_up_to_a_multiple_of_16_change_nothing(model, length, count, num_padded):
    assert engine_steps._count_idle_keys(torch.zeros(2, length, 4)) == count
    source = torch.randint(3, 37, (3, length))
    source[0, length - num_padded :] = PAD
    compare(model.build_engine(), model, source=source, num_steps=2)


def test_keys_that_no_beam_continues_are_evicted(model, monkeypatch):
    monkeypatch.setattr(engine_steps, "FEW_KEYS", 1)  # otherwise a search this short evicts no keys
    monkeypatch.setattr(engine_steps, "ROOM", 1)  # reserve little memory, so that it grows often
    evict = EngineSteps._evict_keys
    evicted = []

    def count(self, mask):
        num_keys = self.num_keys
        kept = evict(self, mask)
        evicted.append(num_keys - self.num_keys)
        assert kept.shape[-1] == self.num_keys
        return kept

    monkeypatch.setattr(EngineSteps, "_evict_keys", count)
    compare(model.build_engine(), model, prompt=(0, 5, 6), num_steps=36, leaving_at=7)
    assert len(evicted) > 2
    assert min(evicted) > 0


# The weights of an engine


def write_data(model, new):
    """Copy the weights of `new` into `model` through `.data`. Such writes do not change PyTorch's version counters."""
    for parameter, other in zip(model.parameters(), new.parameters(), strict=True):
        parameter.data.copy_(other)


WRITES = {
    "data": write_data,
    "load_state_dict": lambda model, new: model.load_state_dict(new.state_dict()),
    "assigned": lambda model, new: model.load_state_dict(new.state_dict(), assign=True),
}


@each_case("write", WRITES)
@each_dtype
def test_an_engine_keeps_its_weights_and_generate_uses_the_current_weights(build_tiny_model, dtype, write):
    changes = CONFIGS["untied, 3 + 1 layers, prelu"] | {"position_embedding_type": "learned", "output_bias": True}
    model, new = (build_tiny_model(noise=0.4, seed=seed, **changes) for seed in (0, 1))
    engine = model.build_engine(dtype=dtype)
    before = model.generate(SOURCE, max_new_tokens=6)
    options = {"max_new_tokens": 6, "return_dict_in_generate": True}
    frozen = engine.generate(SOURCE, **options).sequences_scores
    with torch.no_grad():
        write(model, new)
    assert torch.equal(engine.generate(SOURCE, **options).sequences_scores, frozen)
    after = model.generate(SOURCE, max_new_tokens=6)
    assert torch.equal(after, new.generate(SOURCE, max_new_tokens=6))
    assert not torch.equal(after, before)


def test_an_engine_is_built_of_a_model_only_without_its_adapter(build_tiny_model):
    peft = pytest.importorskip("peft")
    targets = ["q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2", "lm_head"]
    config = peft.LoraConfig(r=3, lora_alpha=6, target_modules=targets, init_lora_weights=False)
    model = build_tiny_model(noise=0.3, tie_word_embeddings=False)
    adapted = peft.get_peft_model(model, config).eval()
    with pytest.raises(ValueError, match=r"q_proj \(Linear\) has a hook, an adapter or another forward"):
        model.build_engine()
    merged = adapted.merge_and_unload()
    compare(merged.build_engine(), merged)


def test_an_engine_may_be_built_and_used_in_inference_mode(model):
    expected = model.generate(SOURCE)
    with torch.inference_mode():
        engine = model.build_engine()
        assert torch.equal(model.generate(SOURCE.repeat(3, 1))[:3], expected)  # packs matrices in inference mode
        assert torch.equal(model.generate(SOURCE, engine=engine), expected)
    found = model.generate(SOURCE, engine=engine, return_dict_in_generate=True, output_scores=True, output_logits=True)
    assert torch.equal(found.sequences, expected)
    assert not any(tensor.is_inference() for tensor in (found.sequences_scores, *found.scores, *found.logits))
    assert not any(parameter.is_inference() for parameter in model.parameters())
    model(input_ids=SOURCE, labels=SOURCE).loss.backward()
    assert model.lm_head.weight.grad.isfinite().all()


def test_generate_reads_the_embeddings_in_place_and_build_engine_copies_them(model, monkeypatch):
    keep = Products.keep
    kept = []

    def record(*args):
        kept.append(keep(*args))
        return kept[-1]

    monkeypatch.setattr(Products, "keep", record)
    for build, is_copy in (
        (lambda: model.generate(SOURCE, max_new_tokens=3), False),
        (model.build_engine, True),
    ):
        kept.clear()
        build()
        assert (kept[0].data_ptr() != model.lm_head.weight.data_ptr()) == is_copy


@each_dtype
def test_autocast_does_not_change_the_results_of_an_engine(model, dtype):
    engine = model.build_engine(dtype=dtype)
    expected = model.generate(SOURCE, engine=engine, max_new_tokens=6)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(model.generate(SOURCE, engine=engine, max_new_tokens=6), expected)


def test_a_translator_keeps_its_weights_and_a_pipeline_uses_the_current_state_of_its_model(build_translator):
    model, tokenizer = build_translator(["a dog runs", "ein Hund rennt"])
    translator = Translator(model, tokenizer)
    pipe = pipeline("translation", model, tokenizer)
    before = translator(["a dog runs"])
    assert [{"translation_text": before[0][0].text}] == pipe(["a dog runs"])
    assert pipe._find_engine()["engine"] is pipe._find_engine()["engine"]
    for change in (
        lambda: nn.init.normal_(model.get_input_embeddings().weight),
        lambda: setattr(model.config, "position_layout", "concatenated"),
    ):
        engine = pipe._find_engine()["engine"]
        change()
        assert pipe._find_engine()["engine"] is not engine
        assert pipe(["a dog runs"]) == pipeline("translation", model, tokenizer)(["a dog runs"])
    assert translator(["a dog runs"]) == before
    assert pipe(["a dog runs"]) != [{"translation_text": before[0][0].text}]


# Models for which no engine can be built


def add_hook(model):
    model.model.decoder.layers[0].feed_forward.activation.register_forward_hook(lambda module, inputs, x: 1 - x)


def replace_forward(model):
    norm = model.model.decoder.layers[3].cross_attention_residual.norm
    norm.forward = lambda x: nn.LayerNorm.forward(norm, x) * 2


def replace_norm(model):
    model.model.encoder.layers[1].feed_forward_residual.norm = nn.RMSNorm(12).eval()


def compile_part(model):
    # `module.compile()` sets this attribute.
    model.model.decoder.layers[0]._compiled_call_impl = model.model.decoder.layers[1].forward


def wrap_prepare_inputs(model):
    prepare = model.prepare_inputs_for_generation
    model.prepare_inputs_for_generation = lambda *args, **kwargs: prepare(*args, **kwargs)


OBSTACLES = {
    "hook": (add_hook, r"decoder.layers.0.feed_forward.activation \(ReLU\) has a hook"),
    "forward": (
        replace_forward,
        r"layers.3.cross_attention_residual.norm \(LayerNorm\) has a hook, .* another forward",
    ),
    "norm": (replace_norm, "an engine can read the paper's layers only .*'RMSNorm' object has no attribute 'bias'"),
    "compile": (compile_part, r"decoder.layers.0 \(DecoderLayer\) has"),
    "inputs": (wrap_prepare_inputs, "a subclass or an adapter prepares its inputs"),
    "window": (lambda model: setattr(model.config, "attention_window", 3), "its attention is restricted to a window"),
    "training": (lambda model: model.train(), "the model .* is in training mode, in which dropout acts"),
}


@each_case(("change", "reason"), OBSTACLES)
def test_a_model_without_an_engine_decodes_by_its_forward(build_tiny_model, change, reason):
    model = build_tiny_model(noise=0.4, dropout=0.0)
    options = {"max_new_tokens": 6, "return_dict_in_generate": True}
    assert find_obstacle(model) is None
    change(model)
    with pytest.raises(ValueError, match=f"an engine cannot be built of this model: .*{reason}"):
        build_engine(model)
    found = model.generate(SOURCE, **options)
    expected = model.generate(SOURCE, **options | RECORDED)
    assert torch.equal(found.sequences, expected.sequences)
    assert_close(found.sequences_scores, expected.sequences_scores, tolerance=1e-5)


def test_global_hooks_autocast_foreign_classes_and_undeclared_kernels_prevent_an_engine(model):
    with torch.autocast("cpu", torch.bfloat16):
        assert find_obstacle(model) == "autocast is enabled"
    hook = nn.modules.module.register_module_forward_hook(lambda *_: None)
    found = find_obstacle(model)
    hook.remove()
    assert found == "a hook is registered for all modules"
    assert "class is not of this package" in find_obstacle(nn.Linear(2, 2))
    model.set_attn_implementation("flex_attention")
    assert "kernel 'flex_attention' does not declare" in find_obstacle(model)


def test_logits_that_a_hook_has_seen_are_not_overwritten(model):
    seen = []
    model.lm_head.register_forward_hook(lambda module, inputs, logits: seen.append((logits, logits.clone())))
    model.generate(SOURCE, max_new_tokens=5)
    assert len(seen) == 5
    assert all(torch.equal(logits, copied) for logits, copied in seen)


def test_hooks_that_record_attentions_do_not_prevent_an_engine(model):
    model.generate(SOURCE, output_attentions=True, return_dict_in_generate=True, max_new_tokens=3)
    assert any(module._forward_hooks for module in model.modules())  # transformers does not remove its hooks
    assert find_obstacle(model) is None


def test_an_engine_can_sample(model):
    engine = model.build_engine(dtype="bfloat16")
    torch.manual_seed(0)
    options = {"do_sample": True, "num_beams": 1, "max_new_tokens": 4}
    first, second = (engine.generate(SOURCE, **options) for _ in range(2))
    assert first.shape == second.shape == (3, 5)
    assert not torch.equal(first, second)
    likeliest = engine.generate(SOURCE, **options, top_k=1)
    assert torch.equal(likeliest, engine.generate(SOURCE, **options | {"do_sample": False}))


def test_a_lack_of_memory_for_an_engine_is_raised_and_the_next_call_tries_again(model, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("vaswani_transformer.engine.engine.Engine", mock.Mock(side_effect=MemoryError))
        with pytest.raises(MemoryError):
            find_engine(model)
    assert find_engine(model) is not None


# Options that are refused


def test_an_engine_outlives_its_model_and_refuses_options_that_need_forward(build_ending_model):
    model = build_ending_model(end_bias=2.0, max_length_offset=6)
    engine = model.build_engine()
    expected = model.generate(SOURCE)
    del model
    assert torch.equal(engine.generate(SOURCE), expected)
    with pytest.raises(ValueError, match=r"an engine cannot decode with .*: call generate"):
        engine.generate(SOURCE, **RECORDED)
    with pytest.raises(TypeError, match="save or pickle its model"):
        engine.save_pretrained("nowhere")
    with pytest.raises(TypeError, match="save or pickle its model"):
        pickle.dumps(engine)


@pytest.mark.parametrize("dtype", ["int4", "nonsense", torch.int32, 5])
def test_a_dtype_that_is_not_floating_point_is_refused(model, dtype):
    with pytest.raises(ValueError, match=f'must be floating-point, such as "bfloat16"; got {dtype!r}'):
        model.build_engine(dtype=dtype)


# Later versions of PyTorch


@pytest.mark.parametrize("name", PRIVATE_NAMES)
@each_dtype
def test_an_engine_works_if_pytorch_lacks_a_private_name(model, monkeypatch, name, dtype):
    monkeypatch.setitem(PRIVATE_NAMES, name, "not.there")
    assert find_private(name) is None
    compare(model.build_engine(dtype=dtype), model, dtype=dtype)
