"""All settings that recipes, configs and generate() accept can be saved and loaded, and do not prevent a conversion."""

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from shortcuts import read_json
from tiny_training import TINY, train
from transformers import GenerationConfig, MarianMTModel

from vaswani_transformer import VaswaniForConditionalGeneration
from vaswani_transformer.conversion.marian import to_marian
from vaswani_transformer.loading import load_translator
from vaswani_transformer.model.search_vaswani import LENGTH_PENALTIES

FEW = settings(max_examples=12, phases=[Phase.generate])
probabilities = st.floats(0, 0.9)
alphas = st.one_of(st.integers(-10, 10), st.floats(-10, 10))
token_ids = st.one_of(
    st.integers(3, 36), st.lists(st.integers(3, 36), min_size=1, max_size=2), st.just(torch.tensor(5))
)
search_options = {
    "num_beams": st.integers(1, 3),
    "length_penalty": alphas,
    "length_penalty_type": st.sampled_from(list(LENGTH_PENALTIES)),
    "max_length_offset": st.integers(1, 9),
    "max_new_tokens": st.integers(1, 9),
    "max_length": st.sampled_from([5, 20]),
    "early_stopping": st.sampled_from([True, False, "never"]),
    "do_sample": st.booleans(),
    "temperature": st.floats(0.5, 2),
    "cache_implementation": st.sampled_from(["dynamic", "static"]),
    "eos_token_id": token_ids,
    "forced_eos_token_id": st.integers(3, 36),
    "suppress_tokens": st.sampled_from([[7], torch.tensor([7, 8]), (9,)]),
    "sequence_bias": st.sampled_from([{(7, 8): -2.0}, [[[7], 1.5]]]),
    "exponential_decay_length_penalty": st.sampled_from([(2, 1.5), [1, 1.1]]),
    "output_scores": st.booleans(),
    "return_dict_in_generate": st.booleans(),
}
model_options = {
    "dropout": probabilities,
    "activation_function": st.sampled_from(["relu", "gelu", "silu", "swish", "tanh"]),
    "position_embedding_type": st.sampled_from(["sinusoidal", "learned"]),
    "attention_window": st.integers(1, 9),
    "tie_word_embeddings": st.booleans(),
    "use_cache": st.booleans(),
    "layer_norm_eps": st.floats(1e-9, 1e-3),
    "d_k": st.integers(1, 5),
}
recipe_options = {
    "num_beams": st.integers(1, 3),
    "length_penalty": alphas,
    "adam_betas": st.tuples(probabilities, probabilities),
    "checkpoint_interval": st.sampled_from([(1, "updates"), (1, "epochs")]),
    "num_averaged_checkpoints": st.integers(1, 3),
}


@FEW
@given(st.fixed_dictionaries({}, optional=search_options), st.booleans())
def test_a_loaded_model_has_the_search_options_with_which_it_was_saved(
    build_tiny_model, options, has_config_of_transformers
):
    model = build_tiny_model(noise=0.1)
    source = torch.tensor([[4, 5, 6, 2]])

    def search(model):
        torch.manual_seed(0)
        found = model.generate(source)
        return getattr(found, "sequences", found).tolist()

    if has_config_of_transformers:
        model.generation_config = GenerationConfig(eos_token_id=2, pad_token_id=1, decoder_start_token_id=0)
    model.generation_config.update(**options, allow_custom_entries=True)
    expected = search(model)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        loaded = VaswaniForConditionalGeneration.from_pretrained(folder)
    assert search(loaded) == expected
    saved_options, loaded_options = (each.generation_config.to_dict() for each in (model, loaded))
    assert {name: loaded_options[name] for name in options} == {name: saved_options[name] for name in options}


@settings(FEW, max_examples=4)
@given(st.fixed_dictionaries(recipe_options), st.fixed_dictionaries(model_options))
def test_a_recipe_with_any_settings_can_be_trained_saved_and_loaded(tiny_data, recipe_changes, model_changes):
    recipe = replace(TINY, num_updates=2, model=TINY.model | model_changes, **recipe_changes)
    with tempfile.TemporaryDirectory() as folder:
        model_folder = train(recipe, tiny_data, Path(folder))
        loaded, _ = load_translator(model_folder)
        options = read_json(model_folder / "generation_config.json")
    assert options["num_beams"] == recipe.num_beams
    assert options["length_penalty"] == recipe.length_penalty
    assert {name: getattr(loaded.config, name) for name in model_changes} == model_changes


@pytest.mark.parametrize("options", [{"num_beams": 1}, {"num_beams": 1, "length_penalty": 0}, {"temperature": 2.0}])
def test_options_without_effect_do_not_prevent_a_conversion_to_marian(build_tiny_model, tmp_path, options):
    model = build_tiny_model(d_k=4, d_v=4, output_bias=True, attention_bias=True, position_layout="concatenated")
    model.generation_config.update(**options)
    to_marian(model).save_pretrained(tmp_path)
    loaded = MarianMTModel.from_pretrained(tmp_path).generation_config
    assert {name: getattr(loaded, name) for name in options} == options
