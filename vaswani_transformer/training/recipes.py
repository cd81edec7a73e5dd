"""The paper's runs and ours, each as its difference from the base model (section 5, table 3).

Three kinds of settings do not overlap: `VaswaniConfig` says what the weights mean, a `Recipe` how they were
trained, the generation config how they are used.
"""

from dataclasses import asdict, dataclass, field, replace

WIDTHS = ("d_model", "d_ff", "d_k", "d_v")
CHECKPOINT_UNITS = ("updates", "epochs")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One training run: what section 5 of the paper fixes, in its order. Defaults are the base model.

    Attributes:
        model: fields of `VaswaniConfig` that differ from its defaults; the vocabulary's size is the tokenizer's.
        vocab_size: entries of the shared vocabulary to learn.
        subword_model: "bpe" or "wordpiece".
        max_length: longest sentence of a training pair, in tokens with `</s>`; longer pairs are dropped.
        max_length_ratio: largest ratio of the two sides of a training pair, in words; `None` keeps all.
        tokens_per_batch: padded source tokens of an update, and as many padded target tokens, over all processes.
        short_first: the updates of the first epoch come in the order of length, the shortest pairs first.
        num_updates: optimizer steps.
        adam_betas, adam_eps: of Adam.
        warmup_updates: updates over which the rate rises.
        lr_scale: multiplies the rate of equation 3.
        weight_decay: decoupled, as AdamW and fairseq's Adam apply it: an update takes rate * weight_decay of each
            weight away; with 0 that is Adam.
        compile: run the stacks through torch.compile; the first update then takes minutes.
        checkpoint_interval: how often a checkpoint is written: a number and "updates" or "epochs".
        num_averaged_checkpoints: last checkpoints whose mean is the final model.
        patience: end the run after that many evaluations in a row without a better development loss; the
            development set is evaluated at each checkpoint.
        num_beams, length_penalty: decoding, chosen on the development set.
    """

    model: dict = field(default_factory=dict)
    # Section 5.1
    vocab_size: int = 37_000
    subword_model: str = "bpe"
    max_length: int = 256
    max_length_ratio: float | None = None
    tokens_per_batch: int = 25_000
    short_first: bool = False
    # Section 5.2
    num_updates: int = 100_000
    # Section 5.3
    adam_betas: tuple[float, float] = (0.9, 0.98)
    adam_eps: float = 1e-9
    warmup_updates: int = 4_000
    lr_scale: float = 1.0
    weight_decay: float = 0.0
    compile: bool = False
    # Section 6.1
    # Paper: every ten minutes, at 0.4 s an update on its machine. Here as many updates, so that what is averaged does
    # not depend on the hardware, nor on when a run was stopped.
    checkpoint_interval: tuple[int, str] = (1_500, "updates")
    num_averaged_checkpoints: int = 5
    patience: int | None = None
    num_beams: int = 4
    length_penalty: float = 0.6

    def __post_init__(self) -> None:
        for name in ("vocab_size", "max_length", "tokens_per_batch", "num_updates", "warmup_updates"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}.")
        if self.num_averaged_checkpoints < 1:
            raise ValueError(
                f"num_averaged_checkpoints must be at least 1 (no averaging), got {self.num_averaged_checkpoints}."
            )
        if not self.weight_decay >= 0:  # also refuses nan
            raise ValueError(f"weight_decay must be at least 0 (none), got {self.weight_decay}.")
        amount, unit = self.checkpoint_interval
        if unit not in CHECKPOINT_UNITS or amount < 1 or amount % 1:
            raise ValueError(
                f"checkpoint_interval is a whole number of at least 1 and one of {CHECKPOINT_UNITS}, "
                f"got {self.checkpoint_interval}."
            )

    def to_dict(self) -> dict:
        """Plain values, as a run folder keeps them."""
        return asdict(self)


BASE = Recipe()
BIG = replace(
    BASE,
    model={"d_model": 1024, "d_ff": 4096, "num_heads": 16, "dropout": 0.3},
    num_updates=300_000,
    checkpoint_interval=(600, "updates"),  # ten minutes at 1.0 s an update
    num_averaged_checkpoints=20,
)

# Table 3: one checkpoint, newstest2013.
TABLE_3_MODELS: dict[str, dict] = {
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
TABLE_3 = {row: replace(BASE, model=model, num_averaged_checkpoints=1) for row, model in TABLE_3_MODELS.items()}
TABLE_3["big"] = replace(BIG, num_averaged_checkpoints=1)

# Wu et al. 2021 ("Good for Misconceived Reasons"), Transformer-Tiny: peak rate 0.005, patience of ten epochs. They rank
# the five hypotheses by log P / |Y|. Here length_penalty is the paper's in every recipe, GNMT's alpha, and its value
# the paper's too, which favours long translations less: at this set's 15 tokens GNMT's penalty grows as fast as |Y|
# with alpha 1.3.
MULTI30K_TINY = replace(
    BASE,
    model={
        "d_model": 128,
        "d_ff": 256,
        "num_heads": 4,
        "encoder_layers": 4,
        "decoder_layers": 4,
        "dropout": 0.3,
    },
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

# fairseq's transformer_iwslt_de_en, trained as its documentation says, on one GPU: peak rate 5e-4. The number of
# updates is ours, about 45 epochs of its 160,000 pairs. There the source has a vocabulary and an embedding of its own,
# attention has biases, 10,000 counts merges (here entries), 175 words (here sub-words), and the best checkpoint
# translates (here the mean of the last). It ranks hypotheses by log P / |Y|; at 25 tokens GNMT's penalty grows as fast
# with alpha 1.2.
IWSLT14_DE_EN = replace(
    BASE,
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

# Some 228,000 pairs of short sentences, captions, speeches and news, 3.3M German tokens, which 30M parameters see
# about 29 times. Half of the base model's layers, so that two CPU cores translate quickly; its peak rate, reached in
# half the updates.
GENERAL_EN_DE = replace(
    BASE,
    model={"encoder_layers": 3, "decoder_layers": 3, "dropout": 0.3},
    vocab_size=16_000,
    tokens_per_batch=8_192,
    num_updates=12_000,
    warmup_updates=2_000,
    lr_scale=0.7,
    checkpoint_interval=(500, "updates"),
)

# The same pairs for two hours on a CPU core. A model that sees them five times does not learn them by heart, so dropout
# is the base model's.
GENERAL_EN_DE_SMALL = replace(
    BASE,
    model={"d_model": 256, "d_ff": 1024, "num_heads": 4, "encoder_layers": 3, "decoder_layers": 3, "dropout": 0.1},
    vocab_size=10_000,
    tokens_per_batch=4_096,
    num_updates=4_500,
    warmup_updates=1_000,
    lr_scale=0.6,
    checkpoint_interval=(250, "updates"),
)

# The built-in corpus on two CPU cores in less than five minutes. Of sentences without end none is seen often
# enough to be learnt by heart, so dropout would only slow the learning down.
PHRASEBOOK = replace(
    BASE,
    model={"d_model": 128, "d_ff": 512, "num_heads": 4, "encoder_layers": 2, "decoder_layers": 2, "dropout": 0.0},
    vocab_size=2_000,
    tokens_per_batch=2_000,
    num_updates=700,
    warmup_updates=300,
    lr_scale=1.2,
    checkpoint_interval=(40, "updates"),
)

# Section 6.3. The paper tuned both dropouts, learning rate and beam on Section 22 and does not say the first two; here
# dropout is as in the authors' code, the rate that of equation 3, heads and d_ff those of the big model. That an output
# may be 300 tokens longer than its input is in `parsing.parser`.
PARSING_WSJ = replace(
    BASE,
    model={
        "d_model": 1024,
        "d_ff": 4096,
        "num_heads": 16,
        "encoder_layers": 4,
        "decoder_layers": 4,
        "dropout": 0.2,
        "attention_dropout": 0.2,
    },
    vocab_size=16_000,
    num_beams=21,
    length_penalty=0.3,
)

# Some 30,000 trees on two CPU cores, with --copy_words. The sentence is half as long as its tree and read once, so
# layers are cheaper in the encoder, where a parser needs them most; a small vocabulary makes the softmax over it, which
# every target token pays, cheap too. Trees of more than max_length tokens, one in a hundred, take more time than the
# F1 they give. Where to look for the next word is learned sooner from sentences of few words: with the shortest trees
# first, a development perplexity of 2.9 was reached after 2,000 updates instead of 4,000.
PARSING_SMALL = replace(
    BASE,
    model={
        "d_model": 256,
        "d_ff": 512,
        "num_heads": 4,
        "encoder_layers": 4,
        "decoder_layers": 2,
        "dropout": 0.1,
    },
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

RECIPES: dict[str, Recipe] = {
    "base_en_de": BASE,
    "big_en_de": BIG,
    "big_en_fr": replace(BIG, model=BIG.model | {"dropout": 0.1}, vocab_size=32_000, subword_model="wordpiece"),
    "multi30k_tiny": MULTI30K_TINY,
    "iwslt14_de_en": IWSLT14_DE_EN,
    "general_en_de": GENERAL_EN_DE,
    "general_en_de_small": GENERAL_EN_DE_SMALL,
    "phrasebook": PHRASEBOOK,
    "parsing_wsj": PARSING_WSJ,
    "parsing_semi_supervised": replace(PARSING_WSJ, vocab_size=32_000),
    "parsing_small": PARSING_SMALL,
    **{f"table3_{row}": recipe for row, recipe in TABLE_3.items()},
}


def load_recipe(name: str) -> Recipe:
    """The recipe called `name`.

    Raises:
        ValueError: if there is none; the message lists them.
    """
    if name not in RECIPES:
        raise ValueError(f"there is no recipe {name!r}; choose one of: {', '.join(RECIPES)}.")
    return RECIPES[name]


def divide_widths(recipe: Recipe, divisor: int) -> Recipe:
    """The same recipe for a narrower model, such that rows of table 3 keep their ratios to base.

    Of the model d_model, d_ff, d_k and d_v are divided; heads, layers and probabilities stay. With d_model the rate
    changes, by equation 3.

    Raises:
        ValueError: if a width cannot be divided; the message names it.
    """
    # Here, so that the names of recipes are known without importing transformers, which takes seconds.
    from ..model.configuration_vaswani import VaswaniConfig

    config = VaswaniConfig(**recipe.model)
    widths = {name: getattr(config, name) for name in WIDTHS}
    for name, width in widths.items():
        if width % divisor:
            raise ValueError(
                f"{name} of this recipe is {width}, which cannot be divided by {divisor}: choose a divisor of all of "
                f"{', '.join(f'{other} {size}' for other, size in widths.items())}."
            )
    return replace(recipe, model=recipe.model | {name: width // divisor for name, width in widths.items()})
