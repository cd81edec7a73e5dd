"""The Transformer of "Attention Is All You Need": text in, training, a model on disk, translation out.

vaswani prepare --train train.en train.de --dev dev.en dev.de --output data
vaswani train --data data --output runs/base
vaswani translate --model runs/base --input test.en --output test.hyp.de
"""

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TextIO

import torch
import transformers
from tqdm import tqdm
from transformers import AutoTokenizer

from . import evaluation
from .attention_drawing import draw_figures
from .attention_maps import collect_attention
from .attention_page import write_html
from .data.corpus import Pair, decode_lines, describe_source, open_parallel, read_lines
from .data.filtering import FilterCounts, PairFilter
from .data.phrasebook.pairs import generate_pairs
from .data.preparation import prepare
from .recipes import RECIPES, load_recipe
from .training.checkpoints import average_checkpoints, select_checkpoints
from .training.interruption import EXIT_CODE, Interrupted
from .training.trainer import Trainer

PHRASEBOOK = "phrasebook"
LINES_PER_WINDOW = 4_096  # read, translated and written at a time
USER_ERRORS = (ValueError, OSError, FloatingPointError, MemoryError)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="vaswani", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--debug", action="store_true", help="show where in the code an error arose")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for add in (_add_prepare, _add_train, _add_average, _add_translate, _add_evaluate, _add_attention):
        add(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    transformers.utils.logging.disable_progress_bar()  # of loading and saving weights
    try:
        args.run(args)
    except BrokenPipeError:
        # Whoever read the output has seen enough (`vaswani translate ... | head`). What is still buffered must
        # not be flushed into the closed pipe at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except Interrupted as error:
        print(f"vaswani {args.command}: {error}", file=sys.stderr)
        return EXIT_CODE
    except USER_ERRORS as error:
        if args.debug:
            raise
        print(f"vaswani {args.command}: {error}", file=sys.stderr)
        return 1
    return 0


def _add_command(commands, name: str, run: Callable[[argparse.Namespace], None]) -> argparse.ArgumentParser:
    """A subcommand whose help is the docstring of the function that runs it."""
    command = commands.add_parser(
        name,
        help=run.__doc__.strip().split("\n")[0],
        description=run.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.set_defaults(run=run)
    return command


# prepare


def _add_prepare(commands) -> None:
    command = _add_command(commands, "prepare", run_prepare)
    text = "one or two names: source and target text files, a .tsv, .jsonl or .parquet file, a folder of .parquet, "
    command.add_argument("--train", nargs="+", required=True, help=f"{text}a Hub dataset (wmt/wmt14:de-en)")
    command.add_argument("--dev", nargs="+", required=True, help="the same for the development set")
    command.add_argument("--output", type=Path, required=True, help="folder for tokenizer and token ids")
    _add_languages(command)
    command.add_argument("--recipe", default="base_en_de", help="take vocabulary and limits from this recipe")
    vocabulary = command.add_mutually_exclusive_group()
    vocabulary.add_argument("--vocab_size", type=int, help="entries of the shared vocabulary to learn")
    vocabulary.add_argument("--tokenizer", type=Path, help="folder with a vocabulary to use instead of learning one")
    command.add_argument("--num_pairs", type=int, default=30_000, help="training pairs of the phrasebook to write")
    filters = command.add_argument_group("filters, counted in what is printed")
    filters.add_argument("--max_length_ratio", type=float, help="longer side over shorter, in words")
    filters.add_argument("--drop_duplicates", action="store_true")
    filters.add_argument("--drop_identical", action="store_true", help="pairs whose two sides are equal")


def _add_languages(command: argparse.ArgumentParser) -> None:
    command.add_argument("--source_language", default="en")
    command.add_argument("--target_language", default="de")


def run_prepare(args: argparse.Namespace) -> None:
    """Learn a vocabulary and turn parallel text into token ids (section 5.1); start it again to go on.

    vaswani prepare --train train.en train.de --dev dev.en dev.de --output data

    With --train phrasebook --dev phrasebook the built-in synthetic corpus is used.
    All cores are used; RAYON_NUM_THREADS=2 in the environment limits them to two.
    """
    recipe = load_recipe(args.recipe)
    ratio = recipe.max_length_ratio if args.max_length_ratio is None else args.max_length_ratio
    pair_filter = PairFilter(
        max_length_ratio=ratio, drop_duplicates=args.drop_duplicates, drop_identical=args.drop_identical
    )
    train = {"split": "train", "num_pairs": args.num_pairs}
    dev = {"split": "validation", "num_pairs": min(500, args.num_pairs)}
    with tqdm(unit=" pairs", file=sys.stderr, disable=None) as bar:
        summary = prepare(
            _reader(args.train, args, **train),
            _reader(args.dev, args, **dev),
            args.output,
            vocab_size=args.vocab_size or recipe.vocab_size,
            subword_model=recipe.subword_model,
            max_length=recipe.max_length,
            pair_filter=pair_filter,
            tokenizer=None if args.tokenizer is None else AutoTokenizer.from_pretrained(args.tokenizer),
            source_language=args.source_language,
            target_language=args.target_language,
            inputs={"train": _describe(args.train, **train), "dev": _describe(args.dev, **dev)},
            log=bar.write,
            on_pairs=bar.update,
        )
    for name in ("train", "dev"):
        counts = summary[name]
        tally = FilterCounts(**{field: counts[field] for field in FilterCounts.__dataclass_fields__})
        print(f"{name}: {tally.summary()}")
        print(
            f"{name}: {counts['pairs']:,} pairs of {counts['source_tokens']:,} source and "
            f"{counts['target_tokens']:,} target tokens; {counts['over_max_length']:,} over {recipe.max_length} tokens"
        )
    print(f"vocabulary of {summary['vocab_size']:,} and token ids in {args.output}")


def _reader(names: list[str], args: argparse.Namespace, *, split: str, num_pairs: int) -> Callable[[], Iterable[Pair]]:
    """A function that reads the pairs from the start each time it is called."""
    if names == [PHRASEBOOK]:
        own_split = {"validation": "dev"}.get(split, split)
        return lambda: generate_pairs(args.target_language, split=own_split, num_pairs=num_pairs)
    languages = {"source_language": args.source_language, "target_language": args.target_language}
    return lambda: open_parallel(names if len(names) > 1 else names[0], split=split, **languages)


def _describe(names: list[str], *, split: str, num_pairs: int) -> list[dict]:
    """What the reader of `names` reads, for the fingerprint."""
    if names == [PHRASEBOOK]:
        return [{"dataset": PHRASEBOOK, "split": split, "num_pairs": num_pairs}]
    return describe_source(names, split=split)


# train


def _add_train(commands) -> None:
    command = _add_command(commands, "train", run_train)
    command.add_argument("--data", type=Path, required=True, help="folder written by `vaswani prepare`")
    command.add_argument("--output", type=Path, required=True, help="run folder; an interrupted run goes on")
    command.add_argument("--recipe", default="base_en_de", help=", ".join(RECIPES))
    command.add_argument("--seed", type=int, default=0)
    command.add_argument("--num_updates", type=int, help="instead of the recipe's")
    command.add_argument("--tokens_per_batch", type=int, help="instead of the recipe's")
    command.add_argument("--accumulation_steps", type=int, help="parts of an update on each process, for less memory")
    command.add_argument("--mixed_precision", choices=("no", "bf16", "fp16"), default="no")
    command.add_argument("--log_interval", type=int, default=50, help="updates between two lines of the log")
    command.add_argument("--dev_bleu", action="store_true", help="translate the development set at each evaluation")
    command.add_argument("--threads", type=int, help="CPU threads of each process")
    command.add_argument(
        "--change_processes", action="store_true", help="go on with a run that another number of processes began"
    )


def run_train(args: argparse.Namespace) -> None:
    """Train a recipe on prepared data (section 5); start it again to go on after an interruption.

    vaswani train --recipe multi30k_tiny --data data --output runs/multi30k

    On several devices: accelerate launch -m vaswani_transformer train --data data --output runs/base
    After SIGTERM the update under way is finished and saved; the exit code is then 75: start the same command again.
    """
    changes = {name: getattr(args, name) for name in ("num_updates", "tokens_per_batch")}
    recipe = replace(load_recipe(args.recipe), **{name: value for name, value in changes.items() if value})
    if args.threads:
        torch.set_num_threads(args.threads)
    trainer = Trainer(
        recipe,
        args.data,
        args.output,
        seed=args.seed,
        accumulation_steps=args.accumulation_steps,
        mixed_precision=args.mixed_precision,
        log_interval=args.log_interval,
        score_dev=evaluation.compute_bleu if args.dev_bleu else None,
        change_processes=args.change_processes,
    )
    trainer.train()


# average


def _add_average(commands) -> None:
    command = _add_command(commands, "average", run_average)
    models = command.add_mutually_exclusive_group(required=True)
    models.add_argument("--run", type=Path, dest="run_folder", help="run folder")
    models.add_argument("--models", type=Path, nargs="+", help="model folders")
    command.add_argument("--last", type=int, default=5, help="checkpoints of the run to average")
    command.add_argument("--minutes_apart", type=float, default=0.0, help="of training, at least, between two of them")
    command.add_argument("--output", type=Path, required=True)


def run_average(args: argparse.Namespace) -> None:
    """Average the weights of the last checkpoints of a run (section 6.1).

    vaswani average --run runs/base --last 5 --minutes_apart 10 --output runs/base/averaged
    """
    folders = args.models or select_checkpoints(
        args.run_folder / "checkpoints", last=args.last, minutes_apart=args.minutes_apart
    )
    average_checkpoints(folders, args.output)
    print(f"averaged {', '.join(folder.name for folder in folders)} into {args.output}")


# translate


def _add_search_options(command: argparse.ArgumentParser) -> None:
    decoding = command.add_argument_group("decoding, section 6.1; the model's own settings where not given")
    decoding.add_argument("--num_beams", type=int)
    decoding.add_argument("--length_penalty", type=float, help="alpha of the GNMT penalty")
    decoding.add_argument("--max_length_offset", type=int, help="tokens a translation may exceed its source by")
    decoding.add_argument("--tokens_per_batch", type=int, default=2_000, help="padded source tokens of a batch")


def _search_options(args: argparse.Namespace) -> dict:
    names = ("num_beams", "length_penalty", "max_length_offset")
    return {name: getattr(args, name) for name in names if getattr(args, name) is not None}


def _add_translate(commands) -> None:
    command = _add_command(commands, "translate", run_translate)
    command.add_argument("--model", required=True, help="model folder, run folder or Hub id")
    command.add_argument("--input", type=Path, help="UTF-8 text, one sentence a line; standard input when not given")
    command.add_argument("--output", type=Path, help="one translation a line, same order; standard output if not given")
    command.add_argument("--dtype", choices=("float32", "bfloat16", "float16"))
    _add_search_options(command)


def run_translate(args: argparse.Namespace) -> None:
    """Translate a file, one line for one line.

    vaswani translate --model runs/base --input test.en --output test.hyp.de
    echo "A dog runs." | vaswani translate --model runs/base
    """
    model, tokenizer = evaluation.load_translator(args.model, dtype=args.dtype)
    lines = decode_lines(sys.stdin.buffer, name="standard input") if args.input is None else read_lines(args.input)
    over_long = 0
    with _open_output(args.output) as output, tqdm(unit=" sentences", file=sys.stderr, disable=None) as bar:
        for window in iter(lambda: list(islice(lines, LINES_PER_WINDOW)), []):
            translations = evaluation.translate(
                model,
                tokenizer,
                window,
                tokens_per_batch=args.tokens_per_batch,
                on_batch=bar.update,
                **_search_options(args),
            )
            over_long += evaluation.count_over_long(tokenizer, window)
            output.writelines(f"{translation}\n" for translation in translations)
            output.flush()
    if over_long:
        print(
            f"vaswani translate: {over_long} sentences are longer than the {tokenizer.model_max_length} tokens that "
            f"training saw at most; they were translated whole, but less well. Split them into sentences.",
            file=sys.stderr,
        )


@contextlib.contextmanager
def _open_output(path: Path | None) -> Iterator[TextIO]:
    if path is None:
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")
        yield sys.stdout
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="\n") as file:
        yield file


# evaluate


def _add_evaluate(commands) -> None:
    command = _add_command(commands, "evaluate", run_evaluate)
    command.add_argument("--model", required=True, help="model folder, run folder or Hub id")
    command.add_argument("--test", nargs="+", required=True, help="source and reference, as for `vaswani prepare`")
    _add_languages(command)
    command.add_argument("--num_pairs", type=int, default=1_000, help="sentences of the phrasebook to score")
    command.add_argument("--tokenize", default="13a", help='sacreBLEU tokenizer; "none" for tokenised text')
    command.add_argument("--lowercase", action="store_true", help="compare without case")
    command.add_argument("--translations", type=Path, help="write the translations here")
    _add_search_options(command)


def run_evaluate(args: argparse.Namespace) -> None:
    """Translate a test set and print BLEU with its signature, perplexity and the search settings.

    vaswani evaluate --model runs/base --test newstest2014.en newstest2014.de
    """
    model, tokenizer = evaluation.load_translator(args.model)
    pairs = list(_reader(args.test, args, split="test", num_pairs=args.num_pairs)())
    if not pairs:
        raise ValueError(f"{' and '.join(args.test)} hold no sentence; there is nothing to score.")
    sources, references = zip(*pairs, strict=True)
    options = _search_options(args)
    with tqdm(total=len(pairs), unit=" sentences", file=sys.stderr, disable=None) as bar:
        hypotheses = evaluation.translate(
            model, tokenizer, sources, tokens_per_batch=args.tokens_per_batch, on_batch=bar.update, **options
        )
    if args.translations is not None:
        with _open_output(args.translations) as output:
            output.writelines(f"{hypothesis}\n" for hypothesis in hypotheses)
    score = evaluation.score_bleu(hypotheses, references, tokenize=args.tokenize, lowercase=args.lowercase)
    print(f"BLEU {score['bleu']:.2f}  {score['signature']}")
    print(f"perplexity {evaluation.compute_perplexity(model, tokenizer, pairs):.3f} per sub-word, no label smoothing")
    print(f"search {evaluation.describe_search(model, **options)}  model {args.model}")


# attention


def _add_attention(commands) -> None:
    command = _add_command(commands, "attention", run_attention)
    command.add_argument("--model", required=True, help="model folder, run folder or Hub id")
    command.add_argument("--source", required=True, help="the sentence")
    command.add_argument("--target", help="its translation; the model's own when not given")
    command.add_argument("--output", type=Path, required=True, help="folder for the pictures and the page")
    command.add_argument("--word", help="the word of figure 3; one that looks far when not given")


def run_attention(args: argparse.Namespace) -> None:
    """Draw what the heads attend to, as in figures 3 to 5: SVG, PNG, and one page to explore.

    vaswani attention --model runs/base --source "The dog that barks runs." --output pictures
    """
    model, tokenizer = evaluation.load_translator(args.model)
    maps = collect_attention(model, tokenizer, args.source, args.target)
    paths = draw_figures(maps.by_words(), args.output, word=args.word)
    paths.append(write_html(maps, args.output / "attention.html", title=args.source))
    print("\n".join(str(path) for path in paths))


if __name__ == "__main__":
    raise SystemExit(main())
