"""Learn one vocabulary for source and target (section 5.1): byte-pair encoding, or word pieces for English-French.

Both kinds work on bytes. So no word is unknown, and decoding restores every normalised text (see `normalization`). The
result is a plain `PreTrainedTokenizerFast`, which `AutoTokenizer` loads without code of this package.
"""

import warnings
from collections.abc import Iterable
from itertools import islice

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from .normalization import build_normalizer

SUBWORD_MODELS = ("bpe", "wordpiece")
# The special tokens in the order of their ids. VaswaniConfig has the same ids by default, and so has fairseq.
SPECIAL_TOKENS = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
TEXTS_PER_BATCH = 1000  # Passing sentences to the trainer one by one would take longer than counting their words.
PIECE_WINDOW = 200  # A word of more bytes is split into parts of this size before the search for word pieces.


def train_tokenizer(
    texts: Iterable[str], *, vocab_size: int = 37_000, subword_model: str = "bpe"
) -> PreTrainedTokenizerFast:
    """Learn a vocabulary from `texts` of both languages.

    Every word includes the space before it. So the first piece of a word differs from pieces inside words. Decoding
    removes the space before the first word. The same texts give the same vocabulary.

    Args:
        texts: sentences of both languages, in any order. They are read once.
        vocab_size: the number of entries, with special tokens and the 256 bytes. A small corpus gives fewer entries.
        subword_model: "bpe" merges pairs in the order in which they were learnt (English-German). "wordpiece" chooses
            the longest piece that fits, from left to right (English-French, 32,000 entries; Wu et al. 2016).

    Returns:
        a tokenizer that appends `</s>` to inputs and labels. If it has word pieces, its `train_new_from_iterator` needs
        `continuing_subword_prefix=""`: these word pieces have no mark, but transformers expects "##".

    Raises:
        ValueError: if `subword_model` is unknown, or if `vocab_size` is too small for the bytes and special tokens.
    """
    if subword_model not in SUBWORD_MODELS:
        raise ValueError(f"subword_model must be one of {SUBWORD_MODELS}, got {subword_model!r}.")
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    smallest = len(alphabet) + len(SPECIAL_TOKENS)
    if vocab_size < smallest:
        raise ValueError(
            f"vocab_size must be at least {smallest} (256 bytes and the special tokens), got {vocab_size}."
        )
    tokenizer = Tokenizer(models.BPE())
    # The pre-tokeniser, and not the normaliser, adds the space before the first word. The normaliser would also add a
    # space to each token of `add_tokens`, and the tokenizer would find this token only after a space.
    first_space = pre_tokenizers.Metaspace(replacement=" ", prepend_scheme="first", split=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([first_space, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS.values()),
        initial_alphabet=sorted(alphabet),
        show_progress=False,
    )
    tokenizer.normalizer = build_normalizer()
    texts = iter(texts)
    tokenizer.train_from_iterator(iter(lambda: list(islice(texts, TEXTS_PER_BATCH)), []), trainer)
    if subword_model == "wordpiece":
        # As in Wu et al., the space marks the first piece of a word, so inner pieces need no mark. The pieces are the
        # entries of the byte-pair encoding, because the trainer for word pieces orders its pieces differently in each
        # run.
        tokenizer.model = models.WordPiece(
            tokenizer.get_vocab(),
            unk_token=SPECIAL_TOKENS["unk_token"],
            continuing_subword_prefix="",
            max_input_chars_per_word=PIECE_WINDOW,
        )
        # Long words are split, because the search for the longest piece takes cubic time in the length of a word.
        split = pre_tokenizers.Split(Regex(f".{{1,{PIECE_WINDOW}}}"), behavior="isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([tokenizer.pre_tokenizer, split])
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(content=" ", left=1, right=0)])
    return wrap_tokenizer(tokenizer)


def wrap_tokenizer(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    """Return `tokenizer` as a tokenizer of transformers that appends `</s>` to inputs and labels.

    Args:
        tokenizer: a tokenizer that has all `SPECIAL_TOKENS`.
    """
    eos = SPECIAL_TOKENS["eos_token"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {eos}", pair=f"$A {eos} $B {eos}", special_tokens=[(eos, tokenizer.token_to_id(eos))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        split_special_tokens=True,  # A "</s>" in a text is not the special token.
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
        **SPECIAL_TOKENS,
    )


def warn_of_lost_tokens(tokenizer: PreTrainedTokenizerBase) -> None:
    """Warn of added tokens that `tokenizer` never finds in text, or only without the space before them."""
    fixed = {tokenizer.bos_token, tokenizer.pad_token, tokenizer.eos_token, tokenizer.unk_token}
    for token, number in tokenizer.get_added_vocab().items():
        ids = tokenizer(f"a {token} a").input_ids
        fault = None
        if number not in ids:
            fault = "never finds it: use tokenizer.add_tokens, or set tokenizer.split_special_tokens = False"
        elif f" {token}" not in tokenizer.decode(ids):
            fault = f"loses the space before it: add it as AddedToken({token!r}, normalized=True)"
        if fault and token not in fixed:
            warnings.warn(f"{token!r} was added to the tokenizer, which in text {fault}.", stacklevel=1)
            return  # The fault of one token is mostly the fault of all.
