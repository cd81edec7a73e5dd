"""Convert Transformers of fairseq to this package.

Checkpoints of `transformer_wmt_en_de` and of other architectures with post-norm layers can be converted. Their network
is the network of the paper with four differences: attention has biases, the epsilon of layer normalisation is 1e-5, the
decoder starts with </s>, and positional encodings have the layout "fairseq". In this layout, all sines come before all
cosines, wavelengths differ slightly, and positions are counted from 2.
"""

from argparse import Namespace
from pathlib import Path

import torch
from torch import Tensor
from transformers import GenerationConfig

from ..data.tokenization import SPECIAL_TOKENS
from ..loading import load_tensors
from ..model.configuration_vaswani import VaswaniConfig
from ..model.modeling_vaswani import VaswaniForConditionalGeneration
from .fairseq_dictionary import build_tokenizer, find_dictionary
from .weight_names import fairseq_name

BOS, PAD, EOS, _ = range(len(SPECIAL_TOKENS))
TOKEN_IDS = {"bos_token_id": BOS, "pad_token_id": PAD, "eos_token_id": EOS, "decoder_start_token_id": EOS}
# Settings that make the network differ from the paper's. Settings that also change the names of weights are not listed,
# because a weight with an unknown name is an error anyway.
UNLIKE = (
    "cross_self_attention",
    "decoder_normalize_before",
    "encoder_normalize_before",
    "no_scale_embedding",
    "no_token_positional_embeddings",
)
# The oldest versions of fairseq number the norms of a layer: `layer_norms.0` and so on.
OLD_NORMS = {
    "encoder": ("self_attn_layer_norm", "final_layer_norm"),
    "decoder": ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
}
SOURCE_EMBEDDING = "encoder.embed_tokens.weight"
TARGET_EMBEDDING = "decoder.embed_tokens.weight"
PROJECTION = "decoder.output_projection.weight"
# Our names of the weights outside of the layers, and fairseq's names.
OUTER_NAMES = {"model.shared.weight": SOURCE_EMBEDDING, "lm_head.weight": PROJECTION}


def import_model(name: str, output: Path) -> str:
    """Convert a checkpoint and the dictionaries beside it; return a note for the user.

    Args:
        name: the file of the checkpoint.
        output: the folder to write the model and its tokenizer to.

    Raises:
        FileNotFoundError: if a file is missing.
        ValueError: in each of these cases:
            - `name` is a folder.
            - The checkpoint is damaged, or holds objects other than tensors, plain values and `argparse.Namespace`.
            - It is no Transformer of fairseq, or its network differs from the paper's.
            - The dictionaries are damaged, differ from each other, or have another size than the checkpoint.
    """
    path = Path(name)
    if path.is_dir():
        raise ValueError(f"{name} is a folder: name the checkpoint in it, such as {path / 'model.pt'}.")
    words = find_dictionary(path.parent)
    checkpoint = load_tensors(path, Namespace)
    try:
        # Older versions call the settings `args`, newer ones `cfg.model`.
        settings = checkpoint.get("args") or checkpoint["cfg"]["model"]
        model = from_fairseq(checkpoint["model"], vars(settings) if isinstance(settings, Namespace) else settings)
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{name} is no Transformer of fairseq: {type(error).__name__} {error}. Give a checkpoint of fairseq."
        ) from error
    if model.config.vocab_size != len(words):
        raise ValueError(
            f"{name} has {model.config.vocab_size} embeddings, but the dictionaries beside it have {len(words)} words: "
            f"copy the dictionaries of this model."
        )
    build_tokenizer(words).save_pretrained(output)
    model.save_pretrained(output)
    return (
        "It searches as fairseq-generate does. As with fairseq, its input must be tokenised, and cut by subword-nmt "
        "with the codes of the model. The tokenizer joins the pieces of translations."
    )


def from_fairseq(weights: dict[str, Tensor], settings: dict) -> VaswaniForConditionalGeneration:
    """Return a model that computes as a model of fairseq does, and searches as `fairseq-generate` does.

    Args:
        weights: the weights of the checkpoint.
        settings: the settings of the checkpoint.

    Raises:
        ValueError: if a Vaswani model cannot represent the fairseq model, or if a weight of a layer is missing.
        LookupError: see `rename_old_weights` and `build_config`.
    """
    weights = rename_old_weights(weights)
    model = VaswaniForConditionalGeneration(build_config(weights, settings)).to(weights[SOURCE_EMBEDDING].dtype).eval()
    names = {name: OUTER_NAMES.get(name, fairseq_name(name).removeprefix("model.")) for name in model.state_dict()}
    # Weights that our model does not have keep their names, so that `load_state_dict` refuses them.
    foreign = {name: weight for name, weight in weights.items() if name not in names.values()}
    try:
        model.load_state_dict({ours: weights[name] for ours, name in names.items() if name in weights} | foreign)
    except RuntimeError as error:
        raise ValueError(f"the weights do not belong to the Transformer of the paper: {error}") from error
    # This is the search of `fairseq-generate` without options: 5 beams, the score log P / |Y|, 1 to 200 tokens before
    # </s>. It ends when five hypotheses are finished.
    model.generation_config = GenerationConfig(
        num_beams=5,
        length_penalty=1.0,
        length_penalty_type="power",
        early_stopping=True,
        max_new_tokens=201,  # with </s>, which fairseq does not count
        min_new_tokens=1,  # No translation is empty.
        suppress_tokens=[PAD],
        **TOKEN_IDS,
    )
    return model


def rename_old_weights(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights under the names of the newest version of fairseq, where Q, K and V have separate matrices.

    Raises:
        LookupError: if a weight is named `layer_norms.N`, and a layer of the paper's encoder or decoder has no norm N.
    """
    renamed = {}
    for name, weight in weights.items():
        parts = name.split(".")
        if parts[-1] in ("version", "_float_tensor"):  # These entries of older versions are not weights.
            continue
        if "layer_norms" in parts[:-2]:
            place = parts.index("layer_norms")
            parts[place : place + 2] = [OLD_NORMS[parts[0]][int(parts[place + 1])]]
        if parts[-1] in ("in_proj_weight", "in_proj_bias"):
            kind = parts.pop().removeprefix("in_proj_")
            for letter, part in zip("qkv", weight.chunk(3), strict=True):
                renamed[".".join([*parts, f"{letter}_proj", kind])] = part
        else:
            renamed[PROJECTION if name == "decoder.embed_out" else ".".join(parts)] = weight
    if TARGET_EMBEDDING in renamed:
        renamed.setdefault(PROJECTION, renamed[TARGET_EMBEDDING])
    return renamed


def build_config(weights: dict[str, Tensor], settings: dict) -> VaswaniConfig:
    """Return the config of the converted model.

    Sizes and tied embeddings are read from the weights. Heads, dropout, label smoothing, the activation function and
    the number of positions are read from the settings. The other fields are the same for all models of fairseq.

    Raises:
        ValueError: if a setting makes the network differ from the paper's.
        KeyError: if the settings lack the number of heads, or if a weight is missing from whose shape a size is read.
    """
    unlike_paper = [name for name in UNLIKE if settings.get(name)]
    if unlike_paper:
        described = ", ".join(f"{name}={settings[name]!r}" for name in unlike_paper)
        raise ValueError(f"this model has {described}, which the Transformer of the paper does not have.")
    heads = settings["encoder_attention_heads"]
    if settings.get("decoder_attention_heads", heads) != heads:
        raise ValueError(
            "encoder_attention_heads and decoder_attention_heads differ, but a Vaswani model has one number of heads."
        )
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
        layer_norm_eps=1e-5,  # the default of PyTorch, which fairseq does not change
        tie_word_embeddings=all(torch.equal(matrix, embeddings[0]) for matrix in embeddings),
        **TOKEN_IDS,
    )
