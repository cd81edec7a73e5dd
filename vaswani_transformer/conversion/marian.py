"""Convert models of MarianMT to this package and back, for any language pair of OPUS-MT.

The network of Marian is the network of the paper with these differences: attention and logits have biases, all sines of
a position come before all cosines (`position_layout="concatenated"`), and the epsilon of layer normalisation is 1e-5.
The search of Marian divides log P by |Y|^alpha. The padding token starts the decoder and is never generated.

The conversion copies all weights, and changes them in two cases. To Marian: if sines and cosines alternate in our
positions, the features of the residual stream are reordered, which does not change the result. From Marian: if Marian
does not scale its embeddings, they are divided by sqrt(d_model), because our model multiplies embeddings by
sqrt(d_model). Divided embeddings cannot be tied to the projection.
"""

from pathlib import Path

import torch
from transformers import AutoConfig, MarianConfig, MarianMTModel, PreTrainedTokenizerBase

from .. import loading
from ..model.configuration_vaswani import VaswaniConfig
from ..model.generation_vaswani import VaswaniGenerationConfig
from ..model.modeling_vaswani import VaswaniForConditionalGeneration
from ..model.search_vaswani import SearchOptions
from .weight_names import fairseq_name

LAYER_NORM_EPS = 1e-5  # MarianConfig has no field for it.
# The allowed difference of logits, relative to the largest. After a wrong conversion it is far larger.
TOLERANCE = 1e-4
OWN_OPTIONS = ("length_penalty_type", "max_length_offset")  # options that transformers does not have
# Entries of a generation config that are no options of the search.
HOUSEKEEPING = ("_from_model_config", "alignment_heads", "transformers_version")
# Modules that write to the residual stream: the first axis of their weights and biases runs over the features of the
# stream. In all other matrices, the second axis does. Here are the ends of Marian's names for these modules.
MODULES_THAT_WRITE = ("norm", "out_proj", "fc2")
# Both configs know these names.
EQUAL_FIELDS = (
    "vocab_size",
    "d_model",
    "encoder_layers",
    "decoder_layers",
    "max_position_embeddings",
    "dropout",
    "attention_dropout",
    "activation_dropout",
    "activation_function",
    "bos_token_id",
    "pad_token_id",
    "eos_token_id",
    "decoder_start_token_id",
    # In VaswaniConfig, these names are aliases of num_heads and d_ff.
    "encoder_attention_heads",
    "decoder_attention_heads",
    "encoder_ffn_dim",
    "decoder_ffn_dim",
)
# Sizes that encoder and decoder share in a Vaswani model.
STACK_FIELDS = (
    ("vocab_size", "decoder_vocab_size"),
    ("encoder_attention_heads", "decoder_attention_heads"),
    ("encoder_ffn_dim", "decoder_ffn_dim"),
)


def import_model(name: str, output: Path) -> str:
    """Convert a MarianMT model; return a note for the user.

    Args:
        name: the folder or the Hub id of the model.
        output: the folder to write our model and its tokenizer to.

    Raises:
        ValueError: if `name` is no MarianMT model, or if a Vaswani model cannot represent it.
    """
    marian = load_marian(name)
    # A MarianTokenizer has a sentencepiece model for each language, but usually one vocabulary for both.
    tokenizer = loading.load_tokenizer(name)
    if getattr(tokenizer, "separate_vocabs", False):
        raise ValueError(
            f"{name} has a vocabulary for each language (separate_vocabs), but a Vaswani model has one for both: "
            f"convert another model."
        )
    model = from_marian(marian)
    difference = compare_logits(model, marian)
    tokenizer.save_pretrained(output)
    model.to(marian.config.dtype).save_pretrained(output)
    return (
        f"Its logits differ from the logits of {name} by {difference:.1e} at most. It searches as Marian does, with "
        f"length_penalty_type='power'. Its tokenizer is {type(tokenizer).__name__}."
    )


def export_model(model: VaswaniForConditionalGeneration, tokenizer: PreTrainedTokenizerBase, output: Path) -> str:
    """Write our model as a MarianMTModel into the folder `output`; return a note for the user.

    The note says where Marian computes or searches in another way than our model.

    Raises:
        ValueError: if Marian cannot represent `model`.
    """
    dtype = model.dtype
    model = model.cpu().float()
    marian = to_marian(model)
    difference = compare_logits(model, marian)
    marian.to(dtype).save_pretrained(output)
    tokenizer.save_pretrained(output)
    lines = [f"Its logits differ from ours by {difference:.1e} at most."]
    if model.config.layer_norm_eps != LAYER_NORM_EPS:
        lines.append(f"Marian's layer_norm_eps is always {LAYER_NORM_EPS}, not {model.config.layer_norm_eps}.")
    search = SearchOptions.resolve(model.generation_config)
    options = {name: getattr(search, name) for name in OWN_OPTIONS}
    differing = [f"{name}={value!r}" for name, value in options.items() if value not in ("power", None, 0)]
    if differing:
        lines.append(
            f"Marian's search has no {', '.join(differing)}: it divides log P by |Y|^length_penalty, and its limits do "
            f"not depend on the source."
        )
    return "\n".join(lines)


def load_marian(name: str) -> MarianMTModel:
    """Load a MarianMT model from a folder or from the Hub, in evaluation mode and float32.

    Returns:
        the model. Its `config.dtype` is the dtype of the weights in the file.

    Raises:
        ValueError: if `name` is no MarianMT model, if it is incomplete, or if a Vaswani model cannot represent it.
    """
    with loading.naming_damage(name):
        config = AutoConfig.from_pretrained(name, trust_remote_code=False)
    if not isinstance(config, MarianConfig):
        raise ValueError(
            f"{name} is a {config.model_type!r} model by its config.json: give a MarianMT model (model_type 'marian')."
        )
    build_vaswani_config(config)  # This raises an error for invalid sizes before a model is built.
    dtype = config.dtype or torch.float32
    marian = loading.load_weights(MarianMTModel, name, config=config, dtype=torch.float32)
    marian.config.dtype = dtype
    return marian


def from_marian(marian: MarianMTModel) -> VaswaniForConditionalGeneration:
    """Return a model of this package that computes and searches as `marian` does.

    Raises:
        ValueError: if a Vaswani model cannot represent it. The message names the field.
    """
    config = build_vaswani_config(marian.config)
    model = VaswaniForConditionalGeneration(config).eval()
    weights = marian.state_dict()
    with torch.no_grad():
        for name, weight in model.state_dict().items():
            weight.copy_(weights[marian_name(name)].reshape(weight.shape))
        if not marian.config.scale_embedding:
            for stack in (model.model.encoder, model.model.decoder):
                stack.embed_tokens.weight.div_(config.d_model**0.5)
    model.generation_config = VaswaniGenerationConfig(**search_options(marian), length_penalty_type="power")
    return model


def to_marian(model: VaswaniForConditionalGeneration) -> MarianMTModel:
    """Return a MarianMTModel that computes as `model` does. It gets the search options that Marian has.

    Raises:
        ValueError: if Marian cannot represent `model`. The message names the field.
    """
    marian = MarianMTModel(build_marian_config(model.config)).eval()
    copy_weights(model, marian)
    options = {name: value for name, value in search_options(model).items() if name not in OWN_OPTIONS}
    if not options.keys() & {"max_length", "max_new_tokens"}:
        # Without a limit, transformers stops at 20 tokens.
        options["max_length"] = model.config.max_position_embeddings
    # A VaswaniGenerationConfig, because transformers refuses to save a plain GenerationConfig that has an option
    # without effect, such as a length penalty beside num_beams=1.
    marian.generation_config = VaswaniGenerationConfig(**options)
    return marian


def build_vaswani_config(config: MarianConfig) -> VaswaniConfig:
    """Return the config of a model of this package that computes as a MarianMTModel with `config` does.

    Raises:
        ValueError: if a size differs between encoder and decoder.
    """
    for fields in STACK_FIELDS:
        encoder, decoder = (getattr(config, field) for field in fields)
        if encoder != decoder:
            raise ValueError(
                f"{' and '.join(fields)} differ ({encoder}, {decoder}), but they must be equal in a Vaswani model."
            )
    return VaswaniConfig(
        **{name: getattr(config, name) for name in EQUAL_FIELDS},
        attention_bias=True,
        output_bias=True,
        position_layout="concatenated",
        layer_norm_eps=LAYER_NORM_EPS,
        tie_word_embeddings=(
            config.share_encoder_decoder_embeddings and config.tie_word_embeddings and config.scale_embedding
        ),
    )


def build_marian_config(config: VaswaniConfig) -> MarianConfig:
    """Return the config of a MarianMTModel that computes as our model with `config` does, except for `layer_norm_eps`.

    Raises:
        ValueError: if Marian cannot represent the model. The message names the fields.
    """
    unlike = {
        "position_embedding_type": config.position_embedding_type != "sinusoidal",
        "position_layout": config.position_layout not in ("interleaved", "concatenated"),
        "d_k and d_v": {config.d_k, config.d_v} != {config.d_model // config.num_heads},
        "attention_window": config.attention_window is not None,
    }
    if any(unlike.values()):
        raise ValueError(
            f"MarianMTModel cannot have the {', '.join(name for name, differs in unlike.items() if differs)} of "
            f"this model."
        )
    return MarianConfig(
        **{name: getattr(config, name) for name in EQUAL_FIELDS},
        scale_embedding=True,
        share_encoder_decoder_embeddings=config.tie_word_embeddings,
        tie_word_embeddings=config.tie_word_embeddings,
        forced_eos_token_id=None,
    )


@torch.no_grad()
def copy_weights(model: VaswaniForConditionalGeneration, marian: MarianMTModel) -> None:
    """Make `marian` compute as `model` does. A bias that `model` does not have becomes zero."""
    our_weights = {marian_name(name): weight for name, weight in model.state_dict().items()}
    order = torch.arange(model.config.d_model)  # The order of the features in the residual stream.
    if model.config.position_layout == "interleaved":
        order = torch.cat([order[::2], order[1::2]])  # First all sines, then all cosines.
    for name, weight in marian.state_dict().items():
        if name in our_weights:
            our_weight = our_weights[name]
            if name.rpartition(".")[0].endswith(MODULES_THAT_WRITE):
                our_weight = our_weight[order]
            elif our_weight.dim() == 2:  # Other matrices have the features on the second axis, other biases on none.
                our_weight = our_weight[:, order]
            weight.copy_(our_weight)
        elif not name.endswith("embed_positions.weight"):  # Marian has computed its sinusoids already.
            weight.zero_()


def marian_name(name: str) -> str:
    """Return the name that Marian uses for our weight `name`."""
    return "final_logits_bias" if name == "lm_head.bias" else fairseq_name(name)


def search_options(model: MarianMTModel | VaswaniForConditionalGeneration) -> dict:
    """Return the search options of `model` that differ from the defaults of transformers."""
    options = model.generation_config.to_diff_dict().items()
    return {name: value for name, value in options if name not in HOUSEKEEPING}


@torch.no_grad()
def compare_logits(model: VaswaniForConditionalGeneration, marian: MarianMTModel) -> float:
    """Return the largest difference between the logits of both models.

    The inputs are two sentences of random tokens. One of them is padded. Both models must be in float32.

    Raises:
        ValueError: if the difference is too large to come from rounding.
    """
    length = min(24, marian.config.max_position_embeddings)
    generator = torch.Generator().manual_seed(0)
    input_ids, decoder_input_ids = torch.randint(model.config.vocab_size, (2, 2, length), generator=generator)
    attention_mask = torch.ones_like(input_ids)
    attention_mask[1, length // 2 :] = 0
    inputs = {"attention_mask": attention_mask, "decoder_input_ids": decoder_input_ids, "use_cache": False}
    ours, theirs = (system(input_ids, **inputs).logits for system in (model, marian))
    difference = float((ours - theirs).abs().max())
    if not difference <= TOLERANCE * max(1.0, float(theirs.abs().max())):
        raise ValueError(
            f"the logits of both models differ by {difference:.1e}, too much for rounding. layer_norm_eps is "
            f"{model.config.layer_norm_eps} in our model and {LAYER_NORM_EPS} in Marian. Nothing was written."
        )
    return difference
