"""The recipes of the paper's runs and of ours. Each is defined by its differences from the base model (section 5)."""

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path

from huggingface_hub.errors import StrictDataclassError

from ..bounds import SEARCH_BOUNDS, Number
from ..files import read_object
from ..model.configuration_vaswani import VaswaniConfig
from .progress import Progress

WIDTHS = ("d_model", "d_ff", "d_k", "d_v")
OF_DATA = ("vocab_size", "subword_model", "max_length", "max_length_ratio")  # fields that only `vaswani prepare` reads
BOUNDS = {
    "vocab_size": Number(1, 1_000_000),
    "max_length": SEARCH_BOUNDS["max_length"],
    "max_length_ratio": Number(1.0, 1_000.0),
    "tokens_per_batch": Number(1, 10_000_000),
    "num_updates": Number(1, 1_000_000_000),
    "adam_eps": Number(0.0, 1.0),
    "warmup_updates": Number(1, 1_000_000_000),
    "lr_scale": Number(0.0, 1_000_000.0),
    "weight_decay": Number(0.0, 1_000_000.0),
    "num_averaged_checkpoints": Number(1, 1_000),
    "patience": Number(1, 1_000_000),
    "num_beams": SEARCH_BOUNDS["num_beams"],
    "length_penalty": SEARCH_BOUNDS["length_penalty"],
}
BETA = Number(0.0, 0.999_999_999)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Settings of one training run, in the order of the paper. The defaults are those of the paper's base model."""

    model: dict = field(default_factory=dict)  # fields of `VaswaniConfig` that differ from its defaults
    # Section 5.1
    vocab_size: int = 37_000  # entries of the shared vocabulary to learn
    subword_model: str = "bpe"  # or "wordpiece"
    max_length: int = 256  # most tokens of a side, `</s>` included; longer pairs are dropped
    max_length_ratio: float | None = None  # largest ratio of the longer side to the shorter, in words; None: no limit
    tokens_per_batch: int = 25_000  # most tokens of an update on each side, with padding, over all processes
    short_first: bool = False  # sort the updates of the first epoch by length, shortest first
    # Section 5.2
    num_updates: int = 100_000  # optimizer steps
    # Section 5.3
    adam_betas: tuple[float, float] = (0.9, 0.98)
    adam_eps: float = 1e-9
    warmup_updates: int = 4_000
    lr_scale: float = 1.0  # multiplies the learning rate of equation 3
    weight_decay: float = 0.0  # as in AdamW: an update subtracts lr * weight_decay * weight from each weight
    compile: bool | None = None  # compile the updates by torch.compile, which takes minutes; None: only on CUDA
    # Section 6.1
    # The paper writes a checkpoint every ten minutes, which is every 1,500 updates of 0.4 s. Here the interval is
    # counted in updates or epochs. So the averaged model depends neither on the hardware nor on when a run is stopped.
    checkpoint_interval: tuple[int, str] = (1_500, "updates")  # or "epochs"
    num_averaged_checkpoints: int = 5  # how many of the last checkpoints are averaged into the final model
    patience: int | None = None  # a run ends after this number of evaluations in a row without a better loss
    num_beams: int = 4
    length_penalty: float = 0.6

    def __post_init__(self) -> None:
        for name, bounds in BOUNDS.items():
            value = getattr(self, name)
            if value not in bounds and value is not getattr(Recipe, name):  # Some defaults are None.
                raise ValueError(f"{name} must be {bounds}, got {value!r}.")
        if self.short_first not in (False, True) or self.compile not in (False, True, None):
            raise ValueError("short_first must be true or false, and compile must be true, false or null.")
        match self.adam_betas:
            case (one, two) if one in BETA and two in BETA:
                pass
            case other:
                raise ValueError(
                    f"adam_betas must be two numbers from 0 to below 1, such as [0.9, 0.98], got {other!r}."
                )
        match self.checkpoint_interval:
            case (int(amount), "updates" | "epochs") if amount >= 1:
                pass
            case other:
                raise ValueError(f'checkpoint_interval must be like [500, "updates"] or [1, "epochs"], got {other!r}.')

    def to_dict(self) -> dict:
        """Return the recipe as JSON values, as in recipe.json."""
        return asdict(self)

    def is_interval_complete(self, progress: Progress) -> bool:
        """Return True if an interval between checkpoints has just ended. This does not depend on `num_updates`."""
        amount, unit = self.checkpoint_interval
        if unit == "epochs":
            return progress.updates_of_epoch == 0 and progress.epoch % amount == 0
        return progress.update % amount == 0

    def is_checkpoint_due(self, progress: Progress) -> bool:
        """Return True if an interval between checkpoints has just ended, or if the last update is done."""
        return self.is_interval_complete(progress) or progress.update >= self.num_updates

    def is_finished(self, progress: Progress) -> bool:
        """Return True if all updates are done, or if the patience is used up."""
        patience = self.patience or math.inf
        return progress.update >= self.num_updates or progress.evaluations_without_gain >= patience


BASE = Recipe()
BIG = Recipe(
    model={"d_model": 1024, "d_ff": 4096, "num_heads": 16, "dropout": 0.3},
    num_updates=300_000,
    checkpoint_interval=(600, "updates"),  # ten minutes at 1.0 s per update
    num_averaged_checkpoints=20,
)

# Table 3 scores single checkpoints, without averaging, on newstest2013.
TABLE_3_MODELS = {
    "base": {},
    "A1": {"num_heads": 1},
    "A2": {"num_heads": 4},
    "A3": {"num_heads": 16},
    "A4": {"num_heads": 32},
    "B1": {"d_k": 16},
    "B2": {"d_k": 32},
    "C1": {"encoder_layers": 2, "decoder_layers": 2},
    "C2": {"encoder_layers": 4, "decoder_layers": 4},
    "C3": {"encoder_layers": 8, "decoder_layers": 8},
    "C4": {"d_model": 256},
    "C5": {"d_model": 1024},
    "C6": {"d_ff": 1024},
    "C7": {"d_ff": 4096},
    "D1": {"dropout": 0.0},
    "D2": {"dropout": 0.2},
    "D3": {"label_smoothing": 0.0},
    "D4": {"label_smoothing": 0.2},
    "E": {"position_embedding_type": "learned"},
    "big": BIG.model,
}
TABLE_3 = {row: Recipe(model=model, num_averaged_checkpoints=1) for row, model in TABLE_3_MODELS.items()}
TABLE_3["big"] = replace(BIG, num_averaged_checkpoints=1)

# Transformer-Tiny of Wu et al. 2021 ("Good for Misconceived Reasons"). Its peak learning rate is 0.005, its patience is
# ten epochs. Wu et al. rank five hypotheses by log P / |Y|. GNMT's length penalty grows like |Y| near 15 tokens, the
# length of sentences in Multi30k, if alpha is (5 + 15) / 15 = 1.3. The recipe keeps the alpha of 0.6 of Vaswani et al.,
# which favours long translations less.
MULTI30K_TINY = Recipe(
    model={"d_model": 128, "d_ff": 256, "num_heads": 4, "encoder_layers": 4, "decoder_layers": 4, "dropout": 0.3},
    vocab_size=10_000,
    tokens_per_batch=8_192,
    num_updates=8_000,
    adam_eps=1e-8,
    warmup_updates=2_000,
    lr_scale=2.53,
    checkpoint_interval=(1, "epochs"),
    num_averaged_checkpoints=10,
    patience=10,
    num_beams=5,
)

# fairseq's transformer_iwslt_de_en, trained on one GPU as its documentation says, with a peak learning rate of 5e-4.
# The number of updates is our choice: about 45 epochs of 160,000 pairs. fairseq differs in these points. Source and
# target have separate vocabularies and embeddings. Attention has biases. The 10,000 of vocab_size is there a number of
# BPE merges, not of entries. The 175 of max_length is a number of words, not of tokens. fairseq translates with the
# best checkpoint, and this recipe with the mean of the last checkpoints. fairseq ranks hypotheses by log P / |Y|.
# GNMT's length penalty grows like |Y| near 25 tokens if alpha is (5 + 25) / 25 = 1.2.
IWSLT14_DE_EN = Recipe(
    model={"d_ff": 1024, "num_heads": 4, "dropout": 0.3},
    vocab_size=10_000,
    max_length=175,
    max_length_ratio=1.5,
    tokens_per_batch=4_096,
    num_updates=50_000,
    adam_eps=1e-8,
    lr_scale=0.7155,
    weight_decay=1e-4,
    checkpoint_interval=(1, "epochs"),
    num_averaged_checkpoints=10,
    num_beams=5,
    length_penalty=1.2,
)

# For 228,000 pairs (3.3M German tokens) of short sentences, captions, speeches and news. Training takes 1.6 hours on a
# CPU core. The model sees a pair about five times and does not learn it by heart, so it needs no more dropout than the
# base model.
GENERAL_EN_DE_SMALL = Recipe(
    model={"d_model": 256, "d_ff": 1024, "num_heads": 4, "encoder_layers": 3, "decoder_layers": 3, "dropout": 0.1},
    vocab_size=10_000,
    tokens_per_batch=4_096,
    num_updates=4_500,
    warmup_updates=1_000,
    lr_scale=0.6,
    checkpoint_interval=(250, "updates"),
)

# For the kind of text of general_en_de_small, but twice as much of it. Training takes four hours on two CPU cores
# with bfloat16. The encoder is deeper than the decoder, because the encoder runs only once for a sentence, but the
# decoder runs once for each token of the translation.
EVERYDAY_EN_DE = replace(
    GENERAL_EN_DE_SMALL,
    model=GENERAL_EN_DE_SMALL.model | {"encoder_layers": 5},
    vocab_size=8_000,
    max_length=128,
    num_updates=19_000,
    warmup_updates=2_000,
    lr_scale=0.8,
    checkpoint_interval=(500, "updates"),
)

# For the built-in corpus. Training takes less than five minutes on two CPU cores. The model does not see a sentence
# often enough to learn it by heart, so dropout would only slow the training down.
PHRASEBOOK = Recipe(
    model={"d_model": 128, "d_ff": 512, "num_heads": 4, "encoder_layers": 2, "decoder_layers": 2, "dropout": 0.0},
    vocab_size=2_000,
    tokens_per_batch=2_000,
    num_updates=700,
    warmup_updates=300,
    lr_scale=1.2,
    checkpoint_interval=(40, "updates"),
)

# The parser of section 6.3. The paper does not state its dropout and its learning rate. Here dropout is as in the
# authors' code, the rate follows equation 3, and d_ff and the number of heads are as in the big model.
# `parsing.parser` lets outputs be 300 tokens longer than inputs.
PARSING_WSJ = Recipe(
    model=BIG.model | {"encoder_layers": 4, "decoder_layers": 4, "dropout": 0.2, "attention_dropout": 0.2},
    vocab_size=16_000,
    num_beams=21,
    length_penalty=0.3,
)

# For 30,000 trees on a CPU, with --copy_words. A sentence (source) is half as long as its tree (target), and
# the encoder runs once for a sentence. So layers cost less in the encoder, where a parser needs them most. A small
# vocabulary makes the softmax cheap. One tree in a hundred has more than max_length tokens and is dropped, because
# training on these trees would take more time than the gain in F1 is worth. With the shortest trees first, a
# development perplexity of 2.9 was reached after 2,000 updates instead of 4,000.
PARSING_SMALL = Recipe(
    model={"d_model": 256, "d_ff": 512, "num_heads": 4, "encoder_layers": 4, "decoder_layers": 2, "dropout": 0.1},
    vocab_size=4_000,
    max_length=200,
    tokens_per_batch=2_048,
    short_first=True,
    num_updates=12_000,
    warmup_updates=1_000,
    lr_scale=0.6,
    checkpoint_interval=(500, "updates"),
    num_averaged_checkpoints=4,
    num_beams=21,
    length_penalty=0.3,
)

BIG_EN_FR = replace(BIG, model=BIG.model | {"dropout": 0.1}, vocab_size=32_000, subword_model="wordpiece")
EN_DE = "WMT 2014 English-German, 4.5M pairs"
BIG_COST = "8 P100, 3.5 days (the paper)"
# Name -> recipe, row of a table in the paper, data that it suits, hardware with hours of training. The hours are from
# the paper, from model_cards/ or from scripts/benchmarks/results/.
CATALOGUE = {
    "base_en_de": (BASE, "table 2, base", EN_DE, "8 P100, 12 hours (the paper)"),
    "big_en_de": (BIG, "table 2, big", EN_DE, BIG_COST),
    "big_en_fr": (BIG_EN_FR, "table 2, big", "WMT 2014 English-French, 36M pairs", BIG_COST),
    "multi30k_tiny": (MULTI30K_TINY, "", "up to 100,000 pairs; Multi30k", "1 CPU core, bfloat16, 1.6 hours"),
    "iwslt14_de_en": (IWSLT14_DE_EN, "", "100,000 to 500,000 pairs; IWSLT 2014", ""),
    "general_en_de_small": (GENERAL_EN_DE_SMALL, "", "100,000 to 500,000 pairs", "1 CPU core, bfloat16, 1.6 hours"),
    "everyday_en_de": (EVERYDAY_EN_DE, "", "100,000 to 1,000,000 short pairs", "2 CPU cores, bfloat16, 4 hours"),
    "phrasebook": (PHRASEBOOK, "", "the built-in synthetic corpus", "2 CPU cores, 4 minutes"),
    "parsing_wsj": (PARSING_WSJ, "table 4, WSJ only", "Penn Treebank, 40,000 trees", ""),
    "parsing_semi_supervised": (replace(PARSING_WSJ, vocab_size=32_000), "table 4, semi-supervised", "17M trees", ""),
    "parsing_small": (PARSING_SMALL, "", "30,000 trees", "1 CPU core, bfloat16, 1.2 hours"),
    **{f"table3_{row}": (recipe, f"table 3, {row}", EN_DE, "") for row, recipe in TABLE_3.items()},
}
RECIPES = {name: recipe for name, (recipe, *_) in CATALOGUE.items()}


def load_recipe(name: str, changes: Iterable[str] = ()) -> Recipe:
    """Return the recipe called `name`, or the recipe in the JSON file `name`, with `changes`.

    Args:
        name: a name of `RECIPES`, or a JSON file. The file holds an object with fields of `Recipe`, or has such an
            object as its entry "recipe", like the recipe.json of a run. Missing fields are as in the base model.
        changes: each is "FIELD=VALUE", or "model.FIELD=VALUE" for a field of the model. VALUE is read as JSON. If it is
            not JSON, it is a string.

    Raises:
        ValueError: if there is no such recipe, or if a field has a wrong name, type or value.
    """
    if name in RECIPES:
        values = RECIPES[name].to_dict()
    elif Path(name).is_file():
        values = read_object(Path(name))
        values = values.get("recipe", values)
    else:
        choices = get_close_matches(name, RECIPES) or RECIPES
        raise ValueError(f"there is no recipe {name!r}, and no such file; choose one of: {', '.join(choices)}.")
    for change in changes:
        field_name, equals_sign, text = change.partition("=")
        if not equals_sign:
            raise ValueError(f"a change is FIELD=VALUE, such as model.dropout=0.3; got {change!r}.")
        try:
            value = json.loads(text)
        except json.JSONDecodeError:
            value = text
        values[field_name] = value
    return build_recipe(values)


def build_recipe(values: dict) -> Recipe:
    """Return the recipe with JSON `values`. Raise a ValueError if a field has a wrong name, type or value.

    A field of the model is an entry of `values["model"]`, or the entry "model.FIELD" of `values`.
    """
    model_fields = {f"model.{name}" for name in model_defaults()}
    known = Recipe.__annotations__.keys() | model_fields
    model_entry = values.get("model", {})
    if not isinstance(model_entry, dict):
        raise ValueError(
            f"model must be an object of fields, got {model_entry!r}. To change one field, give model.dropout=0.3."
        )
    fields = {f"model.{name}": value for name, value in model_entry.items()}
    fields |= {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    fields.pop("model", None)
    for name in fields.keys() - known:
        stem = name.rpartition(".")[2].rstrip("s")
        choices = [field for field in known if stem in field] or get_close_matches(name, known, cutoff=0.75) or known
        raise ValueError(f"a recipe has no field {name}; choose one of: {', '.join(sorted(choices))}.")
    model = {name.removeprefix("model."): fields.pop(name) for name in list(fields) if name in model_fields}
    try:
        VaswaniConfig(**model)  # checks the types and values of the fields
    except StrictDataclassError as error:
        raise ValueError(" ".join(str(error).split())) from error
    return Recipe(**fields, model=model)


def model_defaults() -> dict[str, object]:
    """Return the fields of the model that a recipe may change, with their values in the base model."""
    # The size of the vocabulary is a field of the recipe. The ids of special tokens are fixed.
    fixed = ("vocab_size", "is_encoder_decoder")
    names = [name for name in VaswaniConfig.__annotations__ if name not in fixed and not name.endswith("_token_id")]
    return {name: getattr(VaswaniConfig, name) for name in names}


def divide_widths(recipe: Recipe, divisor: int) -> Recipe:
    """Return `recipe` with d_model, d_ff, d_k and d_v divided by `divisor`.

    If all rows of table 3 are divided by the same number, the ratios between their widths stay as in the paper.

    Raises:
        ValueError: if a width cannot be divided. The message names all widths.
    """
    config = VaswaniConfig(**recipe.model)
    widths = {name: getattr(config, name) for name in WIDTHS}
    if any(width % divisor for width in widths.values()):
        raise ValueError(f"{widths} cannot all be divided by {divisor}: choose a common divisor.")
    return replace(recipe, model=recipe.model | {name: width // divisor for name, width in widths.items()})
