"""The configuration: defaults, aliases, validation and saving."""

import pytest
from huggingface_hub.errors import StrictDataclassFieldValidationError
from transformers import AutoConfig

from vaswani_transformer import VaswaniConfig

BASE = {
    "vocab_size": 37_000,
    "d_model": 512,
    "d_ff": 2048,
    "num_heads": 8,
    "d_k": 64,
    "d_v": 64,
    "encoder_layers": 6,
    "decoder_layers": 6,
    "dropout": 0.1,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "label_smoothing": 0.1,
    "activation_function": "relu",
    "attention_bias": False,
    "output_bias": False,
    "position_embedding_type": "sinusoidal",
    "position_layout": "interleaved",
    "max_position_embeddings": 1024,
    "attention_window": None,
    "layer_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "use_cache": True,
    "is_encoder_decoder": True,
    "bos_token_id": 0,
    "pad_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 0,
}
# A value other than the default for each field except `is_encoder_decoder`.
OTHER = {
    "vocab_size": 101,
    "d_model": 30,
    "d_ff": 44,
    "num_heads": 3,
    "d_k": 4,
    "d_v": 6,
    "encoder_layers": 2,
    "decoder_layers": 5,
    "dropout": 0.3,
    "attention_dropout": 0.2,
    "activation_dropout": 0.4,
    "label_smoothing": 0.05,
    "activation_function": "gelu",
    "attention_bias": True,
    "output_bias": True,
    "position_embedding_type": "learned",
    "position_layout": "concatenated",
    "max_position_embeddings": 77,
    "attention_window": 9,
    "layer_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "use_cache": False,
    "bos_token_id": 7,
    "pad_token_id": 8,
    "eos_token_id": [9, 10],
    "decoder_start_token_id": 11,
}
SIZES = (
    "vocab_size",
    "d_model",
    "d_ff",
    "num_heads",
    "d_k",
    "d_v",
    "encoder_layers",
    "decoder_layers",
    "max_position_embeddings",
)
PROBABILITIES = ("dropout", "attention_dropout", "activation_dropout", "label_smoothing")
ALIASES = {
    "hidden_size": "d_model",
    "intermediate_size": "d_ff",
    "num_attention_heads": "num_heads",
    "num_hidden_layers": "encoder_layers",
    "encoder_attention_heads": "num_heads",
    "decoder_attention_heads": "num_heads",
    "encoder_ffn_dim": "d_ff",
    "decoder_ffn_dim": "d_ff",
}


def test_the_defaults_are_the_base_model_of_the_paper():
    assert {name: getattr(VaswaniConfig(), name) for name in BASE} == BASE


@pytest.mark.parametrize("given", ["d_k", "d_v"])
def test_d_k_and_d_v_are_by_default_d_model_divided_by_num_heads(given):
    config = VaswaniConfig(d_model=96, num_heads=6, **{given: 5})
    assert {config.d_k, config.d_v} == {5, 16}
    assert getattr(config, given) == 5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"position_embedding_type": "rotary"}, r"position_embedding_type.*'sinusoidal', 'learned'.*got 'rotary'"),
        ({"position_layout": "mixed"}, r"position_layout.*'interleaved', 'concatenated'.*got 'mixed'"),
        ({"activation_function": "relux"}, r"activation_function must be one of .*relu.*, got 'relux'"),
        ({"d_model": 15, "num_heads": 3}, "d_model must be even for sinusoidal positions, got 15"),
        ({"attention_window": 10**20}, r"attention_window must be at least 1 and below 2\^31, got 10{20}\."),
        (
            {"d_model": 16, "num_heads": 3, "d_k": 4},
            r"d_model \(16\) must be a multiple of num_heads \(3\).*set d_k and d_v",
        ),
        *(({"layer_norm_eps": value}, f"a positive finite number, got {value}") for value in (0.0, float("inf"))),
        *(
            ({name: 0}, rf"^{name} must be at least 1 and below 2\^31, got 0\.$")
            for name in (*SIZES, "attention_window")
        ),
        *(
            ({name: value}, rf"^{name} is a probability in \[0, 1\), got {value}\.$")
            for name in PROBABILITIES
            for value in (-0.1, 1, float("nan"))
        ),
    ],
)
def test_the_error_about_an_invalid_value_names_the_field(changes, message):
    with pytest.raises(ValueError, match=message):
        VaswaniConfig(**changes)


@pytest.mark.parametrize(("name", "value"), [("d_model", "32"), ("num_heads", None), ("attention_window", 2.5)])
def test_a_value_of_the_wrong_type_is_refused(name, value):
    with pytest.raises(StrictDataclassFieldValidationError, match=name):
        VaswaniConfig(**{name: value})


@pytest.mark.parametrize(("alias", "name"), ALIASES.items())
def test_an_alias_in_the_constructor_sets_its_field(alias, name):
    assert VaswaniConfig(**{alias: 16}).to_dict() == VaswaniConfig(**{name: 16}).to_dict()


def test_get_text_config_tells_a_cache_the_number_of_decoder_layers():
    config = VaswaniConfig(encoder_layers=2, decoder_layers=3)
    assert config.get_text_config(decoder=True).num_hidden_layers == 3


def test_every_field_survives_saving(tmp_path):
    config = VaswaniConfig(**OTHER)
    config.save_pretrained(tmp_path)
    loaded = AutoConfig.from_pretrained(tmp_path)
    assert type(loaded) is VaswaniConfig
    assert {name: getattr(loaded, name) for name in OTHER} == OTHER
    assert set(VaswaniConfig.__annotations__) - set(OTHER) == {"is_encoder_decoder"}
