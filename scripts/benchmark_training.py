"""Speed and memory of training, beside transformers' MarianMTModel of equal size on the same batches.

    python scripts/benchmark_training.py --size tiny --source train.en --target train.de

Both systems start from the same weights and do the same work: batches of section 5.1, dropout, label smoothing,
forward, backward, one step of the same fused Adam. Marian's loss is `cross_entropy` on its logits, as users
write it. Speed counts target tokens without padding. Memory is how far the resident memory of a fresh process
grows over what it was before the model was built, at its peak: weights, gradients, Adam's averages, activations.
"""

import argparse
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
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
from torch import nn
from transformers import PreTrainedModel

from vaswani_transformer import VaswaniConfig, VaswaniForConditionalGeneration
from vaswani_transformer.data.batching import IGNORE_INDEX, plan_updates
from vaswani_transformer.tokenization_vaswani import train_tokenizer

Batch = dict[str, torch.Tensor]
Step = Callable[[Batch], None]


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_common_options(parser, default_size="tiny")
    parser.add_argument("--target", type=Path, help="translations of --source, one a line")
    parser.add_argument("--pairs", type=int, default=5_000, help="sentence pairs to read; default: %(default)s")
    parser.add_argument(
        "--tokens_per_batch",
        type=int,
        default=4_096,
        help="padded source tokens of an update, and as many target tokens; default: %(default)s",
    )
    parser.add_argument("--updates", type=int, default=10, help="updates in a repeat; default: %(default)s")
    return parser


def build_batches(args: argparse.Namespace, vocab_size: int) -> list[Batch]:
    """The batches of `--updates` updates."""
    pairs = read_pairs(args.source, args.target, count=args.pairs)
    tokenizer = train_tokenizer((side for pair in pairs for side in pair), vocab_size=vocab_size)
    sources, targets = (
        [np.asarray(ids) for ids in tokenizer([pair[side] for pair in pairs]).input_ids] for side in (0, 1)
    )
    plan = plan_updates(
        np.array([len(ids) for ids in sources]),
        np.array([len(ids) for ids in targets]),
        tokens_per_batch=args.tokens_per_batch,
        seed=0,
        epoch=0,
    )
    batches = []
    for rows in plan[: args.updates]:
        input_ids = pad([sources[row] for row in rows], tokenizer.pad_token_id)
        batches.append(
            {
                "input_ids": input_ids,
                "attention_mask": (input_ids != tokenizer.pad_token_id).long(),
                "labels": pad([targets[row] for row in rows], IGNORE_INDEX),
            }
        )
    return batches


def pad(sentences: Sequence[np.ndarray], value: int) -> torch.Tensor:
    """(B, longest)."""
    return nn.utils.rnn.pad_sequence(
        [torch.from_numpy(ids) for ids in sentences], batch_first=True, padding_value=value
    )


def our_loss(model: VaswaniForConditionalGeneration, batch: Batch) -> torch.Tensor:
    return model(**batch).loss


def marian_loss(model: PreTrainedModel, batch: Batch) -> torch.Tensor:
    """Marian's own loss has no label smoothing; this is the plain way to add it."""
    logits = model(
        input_ids=batch["input_ids"],
        attention_mask=batch["attention_mask"],
        decoder_input_ids=model.prepare_decoder_input_ids_from_labels(batch["labels"]),
        use_cache=False,
    ).logits
    return nn.functional.cross_entropy(
        logits.flatten(0, 1), batch["labels"].flatten(), label_smoothing=VaswaniConfig.label_smoothing
    )


def build_step(model: PreTrainedModel) -> Step:
    """One update of `model`, forward to optimizer."""
    model.train()
    compute_loss = our_loss if isinstance(model, VaswaniForConditionalGeneration) else marian_loss
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True)

    def step(batch: Batch) -> None:
        compute_loss(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def measure_memory(name: str, config: VaswaniConfig, arrays: list[dict[str, np.ndarray]], threads: int) -> float:
    """MiB that training `name` takes; runs in a process of its own."""
    torch.set_num_threads(threads)
    batches = [{key: torch.from_numpy(array) for key, array in batch.items()} for batch in arrays]

    def work() -> None:
        step = build_step(VaswaniForConditionalGeneration(config) if name == OURS else build_marian(config))
        for batch in batches:
            step(batch)

    return peak_growth(work)


def main(argv: Sequence[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    if (args.source is None) != (args.target is None):
        raise SystemExit("--source and --target go together: give both, or neither for the phrasebook.")
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    config = build_config(args)
    batches = build_batches(args, config.vocab_size)
    models = {OURS: VaswaniForConditionalGeneration(config), MARIAN: build_marian(config)}
    copy_weights(models[OURS], models[MARIAN])

    steps = {name: build_step(model) for name, model in models.items()}
    time_interleaved(steps, batches[:1], repeats=1, clock=args.clock)  # the first update also sets up the optimizers
    seconds = time_interleaved(steps, batches, repeats=args.repeats, clock=args.clock)
    ratio = Ratio.of(seconds[OURS], seconds[MARIAN])
    arrays = [{key: tensor.numpy() for key, tensor in batch.items()} for batch in batches]
    memory = {name: measure_in_child(measure_memory, name, config, arrays, torch.get_num_threads()) for name in steps}

    target_tokens = sum(int((batch["labels"] != IGNORE_INDEX).sum()) for batch in batches)
    speed = {name: target_tokens / statistics.median(seconds[name]) for name in steps}
    rows = [
        {
            "system": name,
            "parameters": num_trained(models[name]),
            "target_tokens_per_second": speed[name],
            "peak_memory_mib": memory[name],
            "seconds": seconds[name],
        }
        for name in steps
    ]
    table = format_table(
        ("system", "parameters", "target tokens/s", "peak memory, MiB"),
        [
            (
                row["system"],
                f"{row['parameters']:,}",
                f"{row['target_tokens_per_second']:,.0f}",
                f"{row['peak_memory_mib']:,.0f}",
            )
            for row in rows
        ]
        + [
            (
                "ratio, median (min to max)",
                f"{num_trained(models[OURS]) / num_trained(models[MARIAN]):.3f}",
                str(ratio),
                f"{memory[OURS] / memory[MARIAN]:.2f}",
            )
        ],
    )
    rows.append({"system": "ratio", **ratio.__dict__, "memory": memory[OURS] / memory[MARIAN]})
    padded = sum(batch["labels"].numel() for batch in batches)
    description = describe_machine() | {
        "model": describe_model(config),
        "batches": f"{len(batches)} updates of at most {args.tokens_per_batch:,} padded tokens a side, "
        f"{target_tokens:,} target tokens in all ({target_tokens / padded:.0%} of the padded); "
        f"{args.pairs:,} pairs of {args.source.name if args.source else 'the phrasebook'}",
        "measured": f"{args.repeats} repeats, in turns update by update, {args.clock} time",
    }
    report(f"Training, {args.size}", description, table, rows, args)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
