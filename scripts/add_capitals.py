"""Give a byte-pair model pieces in capitals and in title case, before it is trained on text that has them.

    python scripts/add_capitals.py --model model_cards/everyday_en_de --source train.en --target train.de --output START

A vocabulary learnt from ordinary text cuts STATION into letters, from which a model understands nothing. This script
adds twins of the pieces that the text uses most. Each piece gets a twin in capitals, and a piece that starts a word of
the source also gets a twin in title case. The embedding of a twin is the embedding of its piece, plus the mean
difference between twin and piece over the twins that exist already. The new merges stand behind all others.
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
    """Return a text as the vocabulary writes it, each byte as one character of ByteLevel."""
    return "".join(part for part, _ in pre_tokenizers.ByteLevel(False, use_regex=False).pre_tokenize_str(text))


def find_twins(piece: str, *, starts_title: bool) -> list[str]:
    """Return the twins of a piece that differ from it: in capitals, then in title case if it starts a word.

    A piece with a part of a character, or with ß, has no twins.

    Args:
        piece: a piece of a ByteLevel vocabulary.
        starts_title: whether to return the twin in title case.
    """
    text = decoders.ByteLevel().decode([piece])
    if "\ufffd" in text or "ß" in text:
        return []
    twins = [text.upper(), text.title()] if starts_title and text.startswith(" ") else [text.upper()]
    return [as_piece(twin) for twin in twins if twin != text]


def cut(piece: str, ranks: dict[tuple[str, str], int]) -> list[str]:
    """Return the parts into which byte-pair encoding cuts a piece: the merge learnt first is made first."""
    parts = list(piece)
    while ranked := [(ranks[pair], at) for at, pair in enumerate(pairwise(parts)) if pair in ranks]:
        at = min(ranked)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts


def count_twins(tokenizer: Tokenizer, sides: list[str]) -> Counter[tuple[str, str]]:
    """Count the pairs (twin, piece) by how often the text would use the twin.

    For twins in capitals, all text counts as if it were in capitals. For twins in title case, half of it counts.

    Args:
        tokenizer: cuts the text; its padding is turned off.
        sides: the files of the source and of the target.
    """
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
    """Add up to `number` pieces to `model` of tokenizer.json: the most frequent twins, and the parts of these twins."""
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
    """Set the embeddings of the new pieces: from the pieces whose twins they are, or else to the mean of all.

    Args:
        embedding: (vocab_size, d_model); the rows from `old_size` on are changed.
        vocab: the id of each piece.
        old_size: the number of old pieces.
    """
    twins = {piece: find_twins(piece, starts_title=True) for piece in vocab}
    known = embedding[:old_size].clone()
    embedding[old_size:] = known.mean(dim=0)
    for kind in (-1, 0):  # capitals last: a piece of one letter has one twin
        ids = torch.tensor(
            [[vocab[piece], vocab[found[kind]]] for piece, found in twins.items() if found and found[kind] in vocab]
        )
        small, large = ids[ids[:, 0] < old_size].T  # the ids of old pieces, and of their twins
        is_known = large < old_size
        moves = known[large[is_known]] - known[small[is_known]]
        move = moves.mean(dim=0) if len(moves) else 0  # a lower-case vocabulary has no twins to learn from
        embedding[large[~is_known]] = known[small[~is_known]] + move


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--model", "--source", "--target", "--output"):
        parser.add_argument(name, required=True)
    parser.add_argument("--number", type=int, default=3300, help="the most pieces to add; default: %(default)s")
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
