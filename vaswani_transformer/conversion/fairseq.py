"""fairseq's Transformers as ours: checkpoints of `transformer_wmt_en_de` and other architectures of post-norm layers.

Its network is the paper's with biases in attention, an epsilon of 1e-5 in layer normalisation, and other positions:
`position_layout="fairseq"`. It starts the decoder with </s>.
"""

from argparse import Namespace
from pathlib import Path

import torch
from transformers import GenerationConfig

from ..model.configuration_vaswani import VaswaniConfig
from ..model.modeling_vaswani import VaswaniForConditionalGeneration
from .fairseq_dictionary import SPECIAL_TOKENS, build_tokenizer, find_dictionary
from .weight_names import fairseq_name

LAYER_NORM_EPS = 1e-5  # PyTorch's, which fairseq does not change
BOS, PAD, EOS, _ = range(len(SPECIAL_TOKENS))
TOKEN_IDS = {"bos_token_id": BOS, "pad_token_id": PAD, "eos_token_id": EOS, "decoder_start_token_id": EOS}
# Settings that make another network than the paper's; those that change the names of the weights need not be here.
UNLIKE = (
    "cross_self_attention",
    "decoder_normalize_before",
    "encoder_normalize_before",
    "no_scale_embedding",
    "no_token_positional_embeddings",
)
# Entries of older versions that are not weights.
IGNORED = ("version", "_float_tensor")
# Norms of the oldest versions, `layer_norms.0` and so on.
OLD_NORMS = {
    ("encoder", "0"): "self_attn_layer_norm",
    ("encoder", "1"): "final_layer_norm",
    ("decoder", "0"): "self_attn_layer_norm",
    ("decoder", "1"): "encoder_attn_layer_norm",
    ("decoder", "2"): "final_layer_norm",
}
SOURCE_EMBEDDING = "encoder.embed_tokens.weight"
TARGET_EMBEDDING = "decoder.embed_tokens.weight"
PROJECTION = "decoder.output_projection.weight"
# Weights outside of the layers.
OUTER_NAMES = {"model.shared.weight": SOURCE_EMBEDDING, "lm_head.weight": PROJECTION}


def import_model(name: str, output: Path) -> str:
    """Write the checkpoint `name` and the dictionaries beside it as ours into `output`; return a note for the user.

    Raises:
        FileNotFoundError: if a file is missing.
        ValueError: if the checkpoint holds anything but weights and settings, or another network than the paper's.
    """
    path = Path(name)
    words = find_dictionary(path.parent)
    checkpoint = load_checkpoint(path)
    try:
        # `args` of older versions, `cfg.model` of newer ones
        settings = checkpoint.get("args") or checkpoint["cfg"]["model"]
        model = from_fairseq(checkpoint["model"], vars(settings) if isinstance(settings, Namespace) else settings)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{name} is no Transformer of fairseq: {type(error).__name__} {error}.") from error
    if model.config.vocab_size != len(words):
        raise ValueError(
            f"{name} has {model.config.vocab_size} embeddings, the dictionaries beside it have {len(words)} words."
        )
    build_tokenizer(words).save_pretrained(output)
    model.save_pretrained(output)
    return (
        f"Vaswani model in {output}; it searches as fairseq-generate does. Its tokenizer expects text as "
        f"fairseq's does: tokenised, and cut by subword-nmt with the codes of the model. It joins the pieces of "
        f"translations."
    )


def load_checkpoint(path: Path) -> dict:
    """Read a .pt file in which `argparse.Namespace` is the only class allowed."""
    try:
        with torch.serialization.safe_globals([Namespace]):
            return torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # damaged bytes may raise anything
        raise ValueError(
            f"{path} was not loaded: it is damaged, or holds more than tensors, plain values and argparse.Namespace, "
            f"and loading anything else may run code."
        ) from error


def from_fairseq(weights: dict[str, torch.Tensor], settings: dict) -> VaswaniForConditionalGeneration:
    """Return the model that computes what fairseq's computes with these weights, and searches as `fairseq-generate`.

    Raises:
        ValueError, KeyError: if a Vaswani model cannot represent it; if a weight or setting is missing.
    """
    weights = rename_old_weights(weights)
    config = build_config(weights, settings)
    model = VaswaniForConditionalGeneration(config).to(weights[SOURCE_EMBEDDING].dtype).eval()
    names = {name: OUTER_NAMES.get(name, fairseq_name(name).removeprefix("model.")) for name in model.state_dict()}
    foreign = {name: weight for name, weight in weights.items() if name not in names.values()}
    try:
        model.load_state_dict({ours: weights[name] for ours, name in names.items() if name in weights} | foreign)
    except RuntimeError as error:
        raise ValueError(f"the weights are not those of the paper's Transformer: {error}") from error
    # The search of `fairseq-generate` without options: beam 5, log P / |Y|, the first five to end, 1 to 200 words.
    model.generation_config = GenerationConfig(
        num_beams=5,
        length_penalty=1.0,
        length_penalty_type="power",
        early_stopping=True,
        max_new_tokens=201,  # fairseq does not count </s>
        min_new_tokens=1,  # no translation begins with </s>
        suppress_tokens=[PAD],
        **TOKEN_IDS,
    )
    return model


def rename_old_weights(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the weights by the names of the newest version, which has one matrix for each of Q, K and V."""
    renamed = {}
    for name, weight in weights.items():
        parts = name.split(".")
        if parts[-1] in IGNORED:
            continue
        if "layer_norms" in parts[:-2]:
            place = parts.index("layer_norms")
            parts[place : place + 2] = [OLD_NORMS.get((parts[0], parts[place + 1]), "layer_norms")]
        if parts[-1] in ("in_proj_weight", "in_proj_bias"):
            kind = parts.pop().removeprefix("in_proj_")
            for letter, part in zip("qkv", weight.chunk(3), strict=True):
                renamed[".".join([*parts, f"{letter}_proj", kind])] = part
        else:
            renamed[PROJECTION if name == "decoder.embed_out" else ".".join(parts)] = weight
    if TARGET_EMBEDDING in renamed:
        renamed.setdefault(PROJECTION, renamed[TARGET_EMBEDDING])
    return renamed


def build_config(weights: dict[str, torch.Tensor], settings: dict) -> VaswaniConfig:
    """Return the config, with sizes from the weights and the rest from the settings.

    Raises:
        ValueError: if a setting makes another network than the paper's.
        KeyError: if a weight that tells a size is missing.
    """
    on = [name for name in UNLIKE if settings.get(name)]
    if on:
        named = ", ".join(f"{name}={settings[name]!r}" for name in on)
        raise ValueError(f"this model has {named}; the paper's Transformer, and so a Vaswani model, has none of it.")
    heads = settings["encoder_attention_heads"]
    if settings.get("decoder_attention_heads", heads) != heads:
        raise ValueError("encoder_attention_heads and decoder_attention_heads differ; a Vaswani model has one of both.")
    embeddings = [weights[name] for name in (SOURCE_EMBEDDING, TARGET_EMBEDDING, PROJECTION)]
    vocab_size, d_model = embeddings[0].shape
    return VaswaniConfig(
        vocab_size=vocab_size,
        d_model=d_model,
        d_ff=weights["encoder.layers.0.fc1.weight"].shape[0],
        num_heads=heads,
        **{
            f"{stack}_layers": len({name.split(".")[2] for name in weights if name.startswith(f"{stack}.layers.")})
            for stack in ("encoder", "decoder")
        },
        dropout=settings.get("dropout", 0.1),
        attention_dropout=settings.get("attention_dropout", 0.0),
        activation_dropout=settings.get("activation_dropout", settings.get("relu_dropout", 0.0)),
        label_smoothing=settings.get("label_smoothing", 0.1),
        activation_function=settings.get("activation_fn", "relu"),
        attention_bias=True,
        position_layout="fairseq",
        max_position_embeddings=settings.get("max_source_positions", 1024),
        layer_norm_eps=LAYER_NORM_EPS,
        tie_word_embeddings=all(torch.equal(matrix, embeddings[0]) for matrix in embeddings),
        **TOKEN_IDS,
    )
