"""Hold `generate()` to a beam search in plain Python: same words, sentence by sentence.

    python scripts/check_beam_search.py --model runs/base --source test.en --sentences 500 --beams 1 4 21

The plain search keeps hypotheses in dictionaries, translates one sentence at a time, calls the model without a cache,
and shares no code with the package's search. With one beam both are greedy: the first </s> that wins ends it.
Prints for each beam how many of the n best agree word for word, and the largest difference of their scores; lists those
that do not, which near ties of float32 may be.
"""

import argparse
import math
from collections.abc import Callable, Sequence
from heapq import nlargest
from itertools import islice
from pathlib import Path

import torch
from tqdm import tqdm

from vaswani_transformer.data.lines import read_lines
from vaswani_transformer.loading import load_translator

Hypothesis = tuple[int, ...]
NextWords = Callable[[list[Hypothesis]], list[list[float]]]


def search(
    next_words: NextWords,
    *,
    num_beams: int,
    limit: int,
    alpha: float,
    end: int,
    num_best: int = 1,
    stops_early: bool = True,
) -> list[tuple[float, Hypothesis]]:
    """Return the `num_best` translations with the highest log P / ((5 + |Y|) / 6)^alpha, best first.

    Args:
        next_words: log P of every word behind each of some hypotheses.
        limit: words a translation may have, </s> included.
        end: the word </s>.
        stops_early: stop when no open hypothesis can win any more, instead of at the limit.
    """
    running: dict[Hypothesis, float] = {(): 0.0}
    finished: dict[Hypothesis, float] = {}
    for length in range(1, limit + 1):
        grown: dict[Hypothesis, float] = {}
        for hypothesis, log_probs in zip(running, next_words(list(running)), strict=True):
            words = nlargest(2 * num_beams, range(len(log_probs)), key=log_probs.__getitem__)
            for word in [end] if length == limit else words:
                grown[(*hypothesis, word)] = running[hypothesis] + log_probs[word]
        best_first = sorted(grown, key=grown.__getitem__, reverse=True)
        for hypothesis in best_first[:num_beams]:
            if hypothesis[-1] == end:
                finished[hypothesis] = grown[hypothesis] / ((5 + length) / 6) ** alpha
        running = {h: grown[h] for h in [h for h in best_first if h[-1] != end][:num_beams]}
        if not running or (num_beams == 1 and finished):
            break
        best_possible = max(running.values()) / ((5 + limit) / 6) ** alpha
        if stops_early and len(finished) >= num_best and nlargest(num_best, finished.values())[-1] >= best_possible:
            break
    return nlargest(num_best, ((score, hypothesis) for hypothesis, score in finished.items()))


def words_of_model(model, source: Sequence[int]) -> NextWords:
    """Return the next words of translations of `source` by `model`: one call of `forward`, without a cache."""
    input_ids = torch.tensor([source], device=model.device)
    encoded = model.get_encoder()(input_ids).last_hidden_state
    start = model.generation_config.decoder_start_token_id

    @torch.no_grad()
    def next_words(hypotheses: list[Hypothesis]) -> list[list[float]]:
        logits = model(
            encoder_outputs=(encoded.expand(len(hypotheses), -1, -1),),
            decoder_input_ids=torch.tensor([[start, *hypothesis] for hypothesis in hypotheses], device=model.device),
            logits_to_keep=1,
            use_cache=False,
        ).logits
        return logits[:, -1].double().log_softmax(dim=-1).tolist()

    return next_words


@torch.no_grad()
def generate(model, tokenizer, sources: list[list[int]], *, num_beams: int, num_best: int, batch_size: int):
    """Return for each source a list of (score, words) by `model.generate`, in batches."""
    results = []
    for start in range(0, len(sources), batch_size):
        inputs = tokenizer.pad({"input_ids": sources[start : start + batch_size]}, return_tensors="pt")
        found = model.generate(
            **inputs.to(model.device),
            num_beams=num_beams,
            num_return_sequences=num_best,
            early_stopping="never",
            return_dict_in_generate=True,
            output_scores=True,
        )
        scores = found.get("sequences_scores")  # of a beam search
        scores = [math.nan] * len(found.sequences) if scores is None else scores.tolist()
        end = model.generation_config.eos_token_id
        rows = [tuple(row[1:]) for row in found.sequences.tolist()]
        rows = [(score, row[: row.index(end) + 1]) for score, row in zip(scores, rows, strict=True)]
        results += [rows[i : i + num_best] for i in range(0, len(rows), num_best)]
    return results


def compare(model, tokenizer, sources: list[list[int]], *, num_beams: int, num_best: int, batch_size: int) -> str:
    """Translate `sources` both ways and return a text that says how far they agree."""
    config, num_best = model.generation_config, min(num_best, num_beams)
    ours = generate(model, tokenizer, sources, num_beams=num_beams, num_best=num_best, batch_size=batch_size)
    agreed, difference, lines = 0, 0.0, []
    # Shown in logs too: wide beams take one second per sentence.
    for number, source in enumerate(tqdm(sources, desc=f"beam {num_beams}", mininterval=10), start=1):
        expected = search(
            words_of_model(model, source),
            num_beams=num_beams,
            limit=len(source) + config.max_length_offset,
            alpha=config.length_penalty,
            end=config.eos_token_id,
            num_best=num_best,
        )
        actual = ours[number - 1]
        if [words for _, words in actual] == [words for _, words in expected]:
            agreed += 1
            differences = [abs(a - e) for (a, _), (e, _) in zip(actual, expected, strict=True) if not math.isnan(a)]
            difference = max(difference, *differences, 0.0)
            continue
        for name, found in (("generate", actual), ("plain", expected)):
            lines += [f"  sentence {number}, {name}: {score:.6f} {tokenizer.decode(list(w))}" for score, w in found]
    summary = (
        f"beam {num_beams}, {num_best} best: {agreed} of {len(sources)} agree token for token, "
        f"scores differ by {difference:.1e} at most"
    )
    return "\n".join([summary, *lines])


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="model folder, run folder or Hub id")
    parser.add_argument("--source", type=Path, required=True, help="UTF-8 text, one sentence per line")
    parser.add_argument("--sentences", type=int, default=500, help="from the beginning of the file")
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 4, 21])
    parser.add_argument("--nbest", type=int, default=1, help="translations of each sentence to compare")
    parser.add_argument("--batch_size", type=int, default=16, help="sentences of a batch of generate()")
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    model, tokenizer = load_translator(args.model, dtype=args.dtype)
    sentences = [line for line in islice(read_lines(args.source), args.sentences) if line.strip()]
    sources = tokenizer(sentences).input_ids
    options = {"num_best": args.nbest, "batch_size": args.batch_size}
    for num_beams in args.beams:
        print(compare(model, tokenizer, sources, num_beams=num_beams, **options), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
