"""fairseq's dictionaries as a tokenizer of text that is already cut into pieces, one id for each.

fairseq's models read text tokenised by Moses and cut by subword-nmt, whose pieces inside a word end in "@@". The
tokenizer reads such text, as fairseq's `binarize` does, and joins the pieces again in its output, as `--remove-bpe`
does. It does not apply the codes of subword-nmt: they make pieces that the dictionary lacks, <unk> to fairseq, and
byte-pair encoding in `tokenizers` cannot make a piece without an id.
"""

from collections import Counter
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from ..data.lines import read_lines

# In the order of their ids, before the words of the file.
SPECIAL_TOKENS = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}


def find_dictionary(folder: Path) -> list[str]:
    """Return the words of `dict.*.txt` in `folder`, special tokens first; those of both languages must be equal.

    Raises:
        FileNotFoundError: if there is none.
        ValueError: if they differ, or as `read_dictionary` does.
    """
    files = sorted(folder.glob("dict*.txt"))
    if not files:
        raise FileNotFoundError(f"{folder} holds no dict.*.txt: copy the dictionaries beside the checkpoint.")
    dictionaries = [read_dictionary(file) for file in files]
    if any(words != dictionaries[0] for words in dictionaries):
        raise ValueError(f"{', '.join(map(str, files))} differ: convert a model trained with --joined-dictionary.")
    return dictionaries[0]


def read_dictionary(path: Path) -> list[str]:
    """Return the words of a file of lines `word count`, in the order of their ids, special tokens first.

    Raises:
        ValueError: if a line has another form or is not UTF-8, or if a word is repeated.
    """
    words = list(SPECIAL_TOKENS.values())
    for number, line in enumerate(read_lines(path), start=1):
        word, _, count = line.rpartition(" ")
        if not word or not count.isdecimal():
            raise ValueError(f"{path}, line {number}: expected a word, a space and a count, got {line!r}.")
        words.append(word)
    for word, count in Counter(words).items():
        if count > 1:
            raise ValueError(f"{path}: {word!r} occurs twice, so its id is ambiguous.")
    return words


def build_tokenizer(words: list[str]) -> PreTrainedTokenizerFast:
    """Build a tokenizer that looks up the text between spaces, and appends `</s>`."""
    eos = SPECIAL_TOKENS["eos_token"]
    vocabulary = {word: token_id for token_id, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=SPECIAL_TOKENS["unk_token"]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {eos}", pair=f"$A {eos} $B {eos}", special_tokens=[(eos, vocabulary[eos])]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            # Puts a space before each word except the first; no word begins with this prefix.
            decoders.WordPiece(prefix=" ", cleanup=False),
            decoders.Fuse(),
            decoders.Replace(Regex("@@( |$)"), ""),
        ]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        split_special_tokens=True,
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
        **SPECIAL_TOKENS,
    )
