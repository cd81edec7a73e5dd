"""A vocabulary that comes as a file: a tokenizer.json, or a model of SentencePiece."""

import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace

from sentencepiece import SentencePieceProcessor
from tokenizers import Tokenizer, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import SentencePieceExtractor, SpmConverter, generate_merges

from .tokenization import SPECIAL_TOKENS, wrap_tokenizer


class _Converter(SpmConverter):
    """The converter of transformers with another extractor of pieces and merges.

    The extractor of transformers fails for byte-pair encodings.
    """

    class SpmExtractor(SentencePieceExtractor):
        def extract(self, scores: Sequence[tuple[str, float]]) -> tuple[dict[str, int], list[tuple[str, str]]]:
            vocabulary = {piece: number for number, (piece, _) in enumerate(scores)}
            return vocabulary, generate_merges(vocabulary, scores)


def read_vocabulary(path: Path, texts: Iterable[str] = ()) -> PreTrainedTokenizerFast:
    """Return the tokenizer in the file `path`, changed so that inputs and labels end with `</s>`.

    The pieces and the normalisation do not change. If `<s>`, `<pad>`, `</s>` or `<unk>` is missing, it is added.

    Args:
        texts: lines on which the tokenizer is compared with SentencePiece.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file is neither a tokenizer.json nor a SentencePiece model that can be converted, or if
            SentencePiece cuts one of the `texts` into other pieces.
        ImportError: if sentencepiece is missing.
    """
    content = path.read_bytes()
    if content.startswith(b"#version:"):
        raise ValueError(
            f"{path} holds BPE codes of subword-nmt, which cannot be converted. Leave --keep_vocabulary out: then a "
            f"new byte-pair encoding is learned from plain text. To convert a model of fairseq, use vaswani convert."
        )
    is_json = content.startswith(b"{")
    try:
        tokenizer = Tokenizer.from_str(content.decode()) if is_json else _convert(path)
    except (ImportError, ValueError):
        raise
    except Exception as error:  # tokenizers and sentencepiece raise exceptions of their own types
        raise ValueError(f"{path} is neither a tokenizer.json nor a model of SentencePiece ({error}).") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS.values()))
    _split_names_in_text(tokenizer)
    wrapped = wrap_tokenizer(tokenizer)
    if not is_json:
        _compare(path, wrapped, texts)
    return wrapped


def _compare(path: Path, tokenizer: PreTrainedTokenizerFast, texts: Iterable[str]) -> None:
    """Raise a ValueError if `tokenizer` cuts a text otherwise than the model of SentencePiece in the file `path`."""
    theirs = SentencePieceProcessor(model_file=str(path))
    for text in (" a  b ", *texts):  # Few texts have extra spaces, but options change what becomes of them.
        ids = tokenizer(text).input_ids[:-1]
        if ids != theirs.encode(text):
            raise ValueError(
                f"{path} cuts {text!r:.100} into {theirs.encode(text, out_type=str)!s:.200}, but its conversion into "
                f"{tokenizer.convert_ids_to_tokens(ids)!s:.200}: train it with SentencePiece's default options for "
                f"spaces and symbols, or leave --keep_vocabulary out."
            )


def _split_names_in_text(tokenizer: Tokenizer) -> None:
    """Let `tokenizer` encode the name of a special token in a text, such as `</s>`, as several ordinary pieces."""
    tokenizer.encode_special_tokens = True
    whole_names = [
        name for name in SPECIAL_TOKENS.values() if tokenizer.token_to_id(name) in tokenizer.encode(f"a {name}").ids
    ]
    if whole_names:
        steps = [] if tokenizer.pre_tokenizer is None else [tokenizer.pre_tokenizer]
        # The pre-tokeniser cuts "</s>" into "</s" and ">", so that no piece can be the whole name.
        steps += [pre_tokenizers.Split(name[:-1], "isolated") for name in whole_names]
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)


def _convert(path: Path) -> Tokenizer:
    spec = SentencePieceExtractor(str(path)).proto.trainer_spec
    kind = spec.ModelType.Name(spec.model_type).lower()
    if kind not in ("unigram", "bpe") or spec.byte_fallback:
        kind += " with byte_fallback" if spec.byte_fallback else ""
        raise ValueError(
            f"{path} is a {kind} model of SentencePiece, which cannot be converted: train it with --model_type=unigram "
            f"or bpe, and without --byte_fallback."
        )
    if symbols := list(spec.user_defined_symbols):
        warnings.warn(
            f"{path} has user-defined symbols ({', '.join(symbols)}). These symbols stay whole. But unlike "
            f"SentencePiece, the tokenizer loses a space before a symbol, and adds a missing space after it: use the "
            f"symbols only at the start of a line, with a space after them.",
            stacklevel=1,  # All warnings have the same place in the code, so Python shows equal warnings once.
        )
    return _Converter(SimpleNamespace(vocab_file=str(path))).converted()
