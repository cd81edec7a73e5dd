"""Give a byte-pair model pieces in capitals and in title case, before it is trained on text that has them.

    python scripts/add_capitals.py --model model_cards/everyday_en_de --source train.en --target train.de --output START

A vocabulary learnt from ordinary text cuts STATION into letters, of which a model knows nothing. Here the pieces that
the text uses most get twins: in capitals, and those of the source also in title case. A twin's embedding is that of its
piece, moved as the embeddings of twins that exist differ on average. The new merges stand behind all others.
"""

import argparse
import json
from collections import Counter
from itertools import islice, pairwise

import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers

from vaswani_transformer.loading import load_translator

LINES = 60_000  # enough to count pieces


def as_piece(text: str) -> str:
    """Return a text in the letters of ByteLevel."""
    return "".join(part for part, _ in pre_tokenizers.ByteLevel(False, use_regex=False).pre_tokenize_str(text))


def find_twins(piece: str, *, starts_title: bool) -> list[str]:
    """Return a piece in capitals and, if it starts a word, in title case: none if it holds part of a character."""
    text = decoders.ByteLevel().decode([piece])
    if "\ufffd" in text or "ß" in text:
        return []
    twins = [text.upper(), text.title()] if starts_title and text.startswith(" ") else [text.upper()]
    return [as_piece(twin) for twin in twins if twin != text]


def cut(piece: str, ranks: dict[tuple[str, str], int]) -> list[str]:
    """Cut a piece as byte-pair encoding does: the merge learnt first comes first."""
    parts = list(piece)
    while ranked := [(ranks[pair], at) for at, pair in enumerate(pairwise(parts)) if pair in ranks]:
        at = min(ranked)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts


def count_twins(tokenizer: Tokenizer, sides: list[str]) -> Counter[tuple[str, str]]:
    """Count how often each twin with its piece would be used if all text were in capitals, and half in title case."""
    counts: Counter[tuple[str, str]] = Counter()
    tokenizer.no_padding()
    for is_target, side in enumerate(sides):
        with open(side, encoding="utf-8") as lines:
            encodings = tokenizer.encode_batch(list(islice(lines, LINES)), add_special_tokens=False)
        pieces = Counter(piece for encoding in encodings for piece in encoding.tokens)
        for piece, count in pieces.items():
            capitals, *title = find_twins(piece, starts_title=not is_target) or [piece]
            counts.update({(capitals, piece): count} | {(twin, piece): count // 2 for twin in title})
    return counts


def add_twins(model: dict, counts: Counter[tuple[str, str]], number: int) -> None:
    """Add up to `number` pieces to the "model" of tokenizer.json: the commonest twins, and the parts they need."""
    vocab = model["vocab"]
    ranks = {tuple(pair): rank for rank, pair in enumerate(model["merges"])}
    end = len(vocab) + number
    for (twin, _), _ in counts.most_common():
        while twin not in vocab and len(vocab) < end:
            left, right, *_ = cut(twin, ranks)
            ranks[left, right] = len(ranks)
            vocab.setdefault(left + right, len(vocab))
    model["merges"] = [list(pair) for pair in ranks]


def move_embeddings(embedding: torch.Tensor, vocab: dict[str, int], old_size: int) -> None:
    """Set the rows of new pieces `(vocab_size, d_model)` from `old_size` on: by their twins, or else to the mean."""
    twins = {piece: find_twins(piece, starts_title=True) for piece in vocab}
    known = embedding[:old_size].clone()
    embedding[old_size:] = known.mean(dim=0)
    for kind in (-1, 0):  # capitals last: a piece of one letter has one twin
        ids = torch.tensor(
            [[vocab[piece], vocab[found[kind]]] for piece, found in twins.items() if found and found[kind] in vocab]
        )
        small, large = ids[ids[:, 0] < old_size].T
        is_known = large < old_size
        moves = known[large[is_known]] - known[small[is_known]]
        move = moves.mean(dim=0) if len(moves) else 0  # a vocabulary of small letters has no twins to learn from
        embedding[large[~is_known]] = known[small[~is_known]] + move


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--model", "--source", "--target", "--output"):
        parser.add_argument(name, required=True)
    parser.add_argument("--number", type=int, default=3300)
    args = parser.parse_args()
    model, tokenizer = load_translator(args.model, dtype="float32")
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    state = json.loads(backend.to_str())
    old_size = len(state["model"]["vocab"])
    add_twins(state["model"], count_twins(backend, [args.source, args.target]), args.number)
    model.resize_token_embeddings(len(state["model"]["vocab"]), mean_resizing=False)
    with torch.no_grad():
        move_embeddings(model.get_input_embeddings().weight, state["model"]["vocab"], old_size)
    model.save_pretrained(args.output)
    type(tokenizer)(tokenizer_object=Tokenizer.from_str(json.dumps(state)), **tokenizer.init_kwargs).save_pretrained(
        args.output
    )
    print(f"{len(state['model']['vocab']) - old_size} pieces added")


if __name__ == "__main__":
    main()
