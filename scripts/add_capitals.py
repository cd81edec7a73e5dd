"""Give a byte-pair model pieces in capitals, each with the embedding of its small twin, before training on capitals.

    python scripts/add_capitals.py --model model_cards/everyday_en_de --number 1800 --output FOLDER

A vocabulary learnt from ordinary text cuts STATION into letters, of which a model knows nothing. Here each piece of
small letters, the commonest first, gets one in capitals, whose merge stands behind all others: other text is cut as
before.
"""

import argparse
import json
from itertools import pairwise

import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import vaswani_transformer  # noqa: F401 - its import registers the model


def in_capitals(piece: str) -> str:
    """Return a piece in the letters of ByteLevel in capitals, or as it is where it holds part of a character."""
    text = decoders.ByteLevel().decode([piece])
    if "\ufffd" in text or "ß" in text:
        return piece
    return "".join(word for word, _ in pre_tokenizers.ByteLevel(False, use_regex=False).pre_tokenize_str(text.upper()))


def cut(piece: str, ranks: dict[tuple[str, str], int]) -> list[str]:
    """Cut a piece as byte-pair encoding does: the merge learnt first comes first."""
    parts = list(piece)
    while ranked := [(ranks[pair], at) for at, pair in enumerate(pairwise(parts)) if pair in ranks]:
        at = min(ranked)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts


def add_capitals(model: dict, number: int) -> dict[int, int]:
    """Add up to `number` pieces in capitals to the "model" of tokenizer.json; return the ids of their small twins."""
    vocab = model["vocab"]
    ranks = {tuple(pair): rank for rank, pair in enumerate(model["merges"])}
    twins: dict[int, int] = {}
    for left, right in list(ranks):
        large = in_capitals(left + right)
        if large not in vocab and len(twins) < number and len(pair := cut(large, ranks)) == 2:
            twins[len(vocab)] = vocab[left + right]
            vocab[large] = len(vocab)
            ranks[tuple(pair)] = len(ranks)
    model["merges"] = [list(pair) for pair in ranks]
    return twins


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--number", type=int, default=1800)
    parser.add_argument("--output", required=True)
    args = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForSeq2SeqLM.from_pretrained(args.model)
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    twins = add_capitals(state["model"], args.number)
    model.resize_token_embeddings(len(state["model"]["vocab"]), mean_resizing=False)
    # One direction for all: the output layer tells capitals from small letters before each piece has learnt to.
    direction = torch.randn(model.config.d_model, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        embedding = model.get_input_embeddings().weight
        small = embedding[list(twins.values())]
        embedding[list(twins)] = small + 0.3 * small.norm(dim=1).mean() * direction / direction.norm()
    model.save_pretrained(args.output)
    type(tokenizer)(tokenizer_object=Tokenizer.from_str(json.dumps(state)), **tokenizer.init_kwargs).save_pretrained(
        args.output
    )
    print(f"{len(twins)} pieces added")


if __name__ == "__main__":
    main()
