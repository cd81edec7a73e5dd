"""Speed and memory of beam search, beside `generate()` of transformers' MarianMTModel with the same weights.

    python scripts/benchmark_decoding.py --model runs/multi30k/model --source test.en

Three searches are timed in turns, sentence by sentence or batch by batch, in the order of the file:

    equal       ours as Marian searches: score log P / |Y|^alpha, the stopping rule of transformers, one limit
                for the whole batch (longest source + 50 tokens). Translations have to be Marian's, but for
                those that reach the limit: there they are cut, here they end with </s>.
    paper       ours as in section 6.1: the penalty of Wu et al., its exact stopping rule, a limit for each sentence.
    Marian      transformers' own.

A model that has learnt nothing does not end its sentences, so without --model the weights are random and every
translation is forced to --forced_length tokens. Memory is how far the resident memory of a fresh process grows at
its peak over what it was with the model loaded.
"""

import argparse
import statistics
import tempfile
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path

import torch
from benchmark_common import (
    MARIAN,
    OURS,
    Ratio,
    add_common_options,
    build_config,
    build_marian,
    copy_weights,
    describe_machine,
    describe_model,
    format_table,
    measure_in_child,
    num_trained,
    peak_growth,
    read_pairs,
    report,
    time_interleaved,
)
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerFast

from vaswani_transformer import VaswaniForConditionalGeneration
from vaswani_transformer.data.corpus import read_lines
from vaswani_transformer.tokenization_vaswani import train_tokenizer

Batch = dict[str, torch.Tensor]
Translate = Callable[[Batch], torch.Tensor]

EQUAL, PAPER = f"{OURS}, equal", f"{OURS}, paper"
LENGTH_OFFSET = 50
TOLERANCE = 1e-4  # of the logits


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_common_options(parser, default_size="small")
    parser.add_argument("--model", type=Path, help="folder of a trained model and its tokenizer")
    parser.add_argument("--sentences", type=int, default=64, help="sentences to read; default: %(default)s")
    parser.add_argument(
        "--batch_sizes", type=int, nargs="+", default=[1, 16, 64], help="in sentences; default: 1 16 64"
    )
    parser.add_argument("--num_beams", type=int, default=4, help="default: %(default)s")
    parser.add_argument("--length_penalty", type=float, default=0.6, help="alpha; default: %(default)s")
    parser.add_argument("--forced_length", type=int, default=32, help="tokens, without --model; default: %(default)s")
    return parser


def load(
    args: argparse.Namespace, sentences: list[str]
) -> tuple[VaswaniForConditionalGeneration, PreTrainedTokenizerFast]:
    """The trained model, or one with random weights."""
    if args.model is not None:
        model = VaswaniForConditionalGeneration.from_pretrained(args.model)
        return model.eval(), PreTrainedTokenizerFast.from_pretrained(args.model)
    torch.manual_seed(0)
    config = build_config(args)
    tokenizer = train_tokenizer(sentences, vocab_size=config.vocab_size)
    return VaswaniForConditionalGeneration(config).eval(), tokenizer


def build_batches(sentences: list[str], tokenizer: PreTrainedTokenizerFast, batch_size: int) -> list[Batch]:
    return [
        dict(tokenizer(sentences[start : start + batch_size], padding=True, return_tensors="pt"))
        for start in range(0, len(sentences), batch_size)
    ]


@torch.no_grad()
def largest_difference(model: PreTrainedModel, marian: PreTrainedModel, batch: Batch) -> float:
    """Of the logits of both, for target tokens drawn at random.

    Raises:
        RuntimeError: if it is more than rounding: then the models are not the same.
    """
    decoder_input_ids = torch.randint(3, model.config.vocab_size, (len(batch["input_ids"]), 20))
    ours, theirs = (
        system(**batch, decoder_input_ids=decoder_input_ids, use_cache=False).logits for system in (model, marian)
    )
    difference = float((ours - theirs).abs().max())
    if not difference <= TOLERANCE:
        raise RuntimeError(f"with the same weights the logits of both systems differ by {difference:.1e}.")
    return difference


def build_translate(name: str, model: PreTrainedModel, args: argparse.Namespace) -> Translate:
    """`generate()` of `model`, set up as search `name`."""
    token_ids = {
        key: getattr(model.config, key)
        for key in ("bos_token_id", "pad_token_id", "eos_token_id", "decoder_start_token_id")
    }
    # `early_stopping=False` is transformers' default.
    options = {"num_beams": args.num_beams, "length_penalty": args.length_penalty, "early_stopping": False}
    if name == EQUAL:
        options |= {"length_penalty_type": "power", "max_length_offset": None}
    elif name == PAPER:
        options |= {"length_penalty_type": "gnmt", "max_length_offset": LENGTH_OFFSET, "early_stopping": "never"}
    generation_config = GenerationConfig(**options, **token_ids)

    def translate(batch: Batch) -> torch.Tensor:
        limits = {}
        if args.model is None:
            limits = {"min_new_tokens": args.forced_length, "max_new_tokens": args.forced_length}
        elif name != PAPER:
            limits = {"max_new_tokens": batch["input_ids"].shape[1] + LENGTH_OFFSET}
        # Two of the searches share a model, and what a call leaves open comes from the model's own config.
        model.generation_config = generation_config
        return model.generate(**batch, **limits)

    return translate


def list_translations(outputs: Sequence[torch.Tensor], pad_token_id: int) -> list[list[int]]:
    """Tokens of each sentence behind the start token, without padding."""
    return [row[row != pad_token_id].tolist() for rows in outputs for row in rows[:, 1:]]


def measure_memory(name: str, path: Path, batches: list[dict], args: argparse.Namespace, threads: int) -> float:
    """MiB that the search takes besides the model; runs in a process of its own."""
    torch.set_num_threads(threads)
    model = torch.load(path, weights_only=False)
    translate = build_translate(name, model, args)
    tensors = [{key: torch.tensor(ids) for key, ids in batch.items()} for batch in batches]

    def work() -> None:
        for batch in tensors:
            translate(batch)

    return peak_growth(work)


def measure_memories(models: dict[str, PreTrainedModel], batches: list[Batch], args) -> dict[str, float]:
    """MiB of each search."""
    lists = [{key: tensor.tolist() for key, tensor in batch.items()} for batch in batches]
    with tempfile.TemporaryDirectory() as folder:
        memories = {}
        for name, model in models.items():
            path = Path(folder) / "model.pt"
            torch.save(model, path)
            memories[name] = measure_in_child(measure_memory, name, path, lists, args, torch.get_num_threads())
    return memories


def compare(models: dict[str, PreTrainedModel], batches: list[Batch], args: argparse.Namespace) -> list[dict]:
    """All searches over `batches`: a row of the result for each."""
    systems = {name: build_translate(name, model, args) for name, model in models.items()}
    # Also the warm-up.
    translations = {
        name: list_translations([translate(batch) for batch in batches], models[name].config.pad_token_id)
        for name, translate in systems.items()
    }
    seconds = time_interleaved(systems, batches, repeats=args.repeats, clock=args.clock)
    memories = measure_memories(models, batches, args)
    eos_token_id = models[MARIAN].config.eos_token_id
    cut = sum(tokens[-1] != eos_token_id for tokens in translations[MARIAN])
    rows = []
    for name in systems:
        median = statistics.median(seconds[name])
        pairs = zip(translations[name], translations[MARIAN], strict=True)
        rows.append(
            {
                "batch_size": len(batches[0]["input_ids"]),
                "system": name,
                "sentences_per_second": len(translations[name]) / median,
                "tokens_per_second": sum(map(len, translations[name])) / median,
                "ratio": Ratio.of(seconds[name], seconds[MARIAN]),
                "same_translations": sum(ours == theirs for ours, theirs in pairs),
                "sentences": len(translations[name]),
                "cut_by_marian": cut,
                "peak_memory_mib": memories[name],
                "seconds": seconds[name],
            }
        )
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    if args.source is None:
        sentences = [source for source, _ in read_pairs(None, None, count=args.sentences)]
    else:
        sentences = list(islice(read_lines(args.source), args.sentences))
    model, tokenizer = load(args, sentences)
    marian = build_marian(model.config).eval()
    copy_weights(model, marian)
    models = {EQUAL: model, PAPER: model, MARIAN: marian}
    difference = largest_difference(model, marian, build_batches(sentences, tokenizer, 16)[0])
    rows = []
    for batch_size in args.batch_sizes:
        rows += compare(models, build_batches(sentences, tokenizer, batch_size), args)

    table = format_table(
        ("system", "batch", "sentences/s", "tokens/s", "ratio (min to max)", "as Marian's", "memory, MiB"),
        [
            (
                row["system"],
                str(row["batch_size"]),
                f"{row['sentences_per_second']:.2f}",
                f"{row['tokens_per_second']:,.0f}",
                "1" if row["system"] == MARIAN else str(row["ratio"]),
                f"{row['same_translations']} of {row['sentences']}",
                f"{row['peak_memory_mib']:,.0f}",
            )
            for row in rows
        ],
    )
    cut = max(row["cut_by_marian"] for row in rows)
    weights = f"random, forced to {args.forced_length} tokens" if args.model is None else args.model.name
    description = describe_machine() | {
        "model": describe_model(model.config),
        "weights": f"{weights}; {num_trained(model):,} parameters, {num_trained(marian):,} in Marian; logits "
        f"differ by {difference:.1e} at most",
        "search": f"beam {args.num_beams}, alpha {args.length_penalty}; the limit cuts {cut} translations of Marian's",
        "sentences": f"{len(sentences)} of {args.source.name if args.source else 'the phrasebook'}",
        "measured": f"{args.repeats} repeats, in turns batch by batch, {args.clock} time; the ratio is of sentences/s "
        f"to Marian's",
    }
    for row in rows:
        row["ratio"] = row["ratio"].__dict__
    size = args.size if args.model is None else args.model.name
    report(f"Decoding, {size}", description, table, rows, args)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
