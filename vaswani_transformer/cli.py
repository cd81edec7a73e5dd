"""The Transformer of "Attention Is All You Need": text in, training, a model on disk, translation out.

vaswani prepare --train train.en train.de --dev dev.en dev.de --output data
vaswani train --data data --output runs/base
vaswani translate --model runs/base --input test.en --output test.hyp.de
"""

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import BinaryIO, TextIO

import torch
import transformers
from tqdm import tqdm
from transformers import AutoTokenizer

from . import evaluation
from .attention_drawing import draw_figures
from .attention_maps import collect_attention
from .attention_page import write_html
from .data.corpus import Pair, describe_source, open_parallel, read_lines, read_parallel_files
from .data.filtering import FilterCounts, PairFilter
from .data.phrasebook.pairs import generate_pairs
from .data.preparation import prepare
from .file_translation import find_processes, read_windows, translate_file, translate_stream
from .recipes import RECIPES, load_recipe
from .scoring_vaswani import score_pairs
from .training.checkpoints import average_checkpoints, select_checkpoints
from .training.interruption import EXIT_CODE, Interrupted
from .training.run_folder import RECIPE_FILE
from .training.trainer import Trainer
from .translation import Translator, format_lines, translate

PHRASEBOOK = "phrasebook"
USER_ERRORS = (ValueError, OSError, FloatingPointError, MemoryError)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="vaswani", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--debug", action="store_true", help="show where in the code an error arose")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for add in (
        _add_prepare,
        _add_train,
        _add_average,
        _add_translate,
        _add_score,
        _add_evaluate,
        _add_attention,
        _add_export,
    ):
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


def positive_int(text: str) -> int:
    """The type of an argument that counts something."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return number


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
    vocabulary.add_argument("--vocab_size", type=positive_int, help="entries of the shared vocabulary to learn")
    vocabulary.add_argument("--tokenizer", type=Path, help="folder with a vocabulary to use instead of learning one")
    text = "training pairs of the phrasebook to write"
    command.add_argument("--num_pairs", type=positive_int, default=30_000, help=text)
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

    With --train phrasebook --dev phrasebook the built-in synthetic corpus is used. Files may be compressed (.gz).
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
            vocab_size=recipe.vocab_size if args.vocab_size is None else args.vocab_size,
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


def _reader(
    names: list[str], args: argparse.Namespace, *, split: str, num_pairs: int, streaming: bool = False
) -> Callable[[], Iterable[Pair]]:
    """A function that reads the pairs from the start each time it is called."""
    if names == [PHRASEBOOK]:
        own_split = {"validation": "dev"}.get(split, split)
        return lambda: generate_pairs(args.target_language, split=own_split, num_pairs=num_pairs)
    languages = {"source_language": args.source_language, "target_language": args.target_language}
    return lambda: open_parallel(names if len(names) > 1 else names[0], split=split, streaming=streaming, **languages)


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
    command.add_argument("--num_updates", type=positive_int, help="instead of the recipe's")
    command.add_argument("--tokens_per_batch", type=positive_int, help="instead of the recipe's")
    text = "parts of an update on each process, for less memory"
    command.add_argument("--accumulation_steps", type=positive_int, help=text)
    command.add_argument("--mixed_precision", choices=("no", "bf16", "fp16"), help="instead of the launcher's")
    text = "run the stacks through torch.compile: the first update then takes minutes"
    command.add_argument("--compile", action="store_true", default=None, help=text)
    command.add_argument("--log_interval", type=positive_int, default=50, help="updates between two lines of the log")
    command.add_argument("--dev_bleu", action="store_true", help="translate the development set at each evaluation")
    command.add_argument("--threads", type=positive_int, help="CPU threads of each process")
    command.add_argument(
        "--change_processes", action="store_true", help="go on with a run that another number of processes began"
    )


def run_train(args: argparse.Namespace) -> None:
    """Train a recipe on prepared data (section 5); start it again to go on after an interruption.

    vaswani train --recipe multi30k_tiny --data data --output runs/multi30k

    On several devices: accelerate launch -m vaswani_transformer train --data data --output runs/base
    After SIGTERM the update under way is finished and saved; the exit code is then 75: start the same command again.
    Where the package tensorboard is installed, OUTPUT/tensorboard has what OUTPUT/log.jsonl has.
    """
    changes = {name: getattr(args, name) for name in ("num_updates", "tokens_per_batch", "compile")}
    changes = {name: value for name, value in changes.items() if value is not None}
    recipe = replace(load_recipe(args.recipe), **changes)
    if args.threads is not None:
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
    text = "checkpoints of the run to average; as many as its recipe says when not given"
    command.add_argument("--last", type=positive_int, help=text)
    text = "of training, at least, between two of them; a run keeps no more than its recipe averages, so ask for fewer"
    command.add_argument("--minutes_apart", type=float, default=0.0, help=text)
    command.add_argument("--output", type=Path, required=True)


def run_average(args: argparse.Namespace) -> None:
    """Average the weights of the last checkpoints of a run (section 6.1).

    vaswani average --run runs/base --last 3 --output runs/base/averaged

    With the recipe's own number that is what training has written to the folder model already.
    """
    folders = args.models
    if folders is None:
        last = _num_averaged_checkpoints(args.run_folder) if args.last is None else args.last
        folders = select_checkpoints(args.run_folder / "checkpoints", last=last, minutes_apart=args.minutes_apart)
    average_checkpoints(folders, args.output)
    print(f"averaged {', '.join(folder.name for folder in folders)} into {args.output}")


def _num_averaged_checkpoints(run_folder: Path) -> int:
    """What the recipe of a run says."""
    path = run_folder / RECIPE_FILE
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; name the --output of `vaswani train`, or give --models.")
    return json.loads(path.read_text(encoding="utf-8"))["recipe"]["num_averaged_checkpoints"]


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
    command.add_argument("--nbest", type=int, help="lines for each sentence, best first: its number from 1, tab, text")
    command.add_argument(
        "--scores", action="store_true", help="log P / lp of the translation and a tab before its text"
    )
    _add_search_options(command)


def run_translate(args: argparse.Namespace) -> None:
    """Translate a file, one line for one line; start it again to go on after an interruption.

    vaswani translate --model runs/base --input test.en --output test.hyp.de
    echo "A dog runs." | vaswani translate --model runs/base

    On several devices: accelerate launch -m vaswani_transformer translate --model ... --input ... --output ...
    From file to file, what is done is kept in OUTPUT.partial until all is; only then OUTPUT is replaced. To standard
    output go the lines of standard input that are there already, as soon as they are translated.
    """
    processes = find_processes()
    is_resumable = args.input is not None and args.input.is_file() and _is_replaceable(args.output)
    if processes.num_processes > 1 and not is_resumable:
        raise ValueError(
            f"{processes.num_processes} processes can share a file, not a pipe: give --input and --output files."
        )
    if args.input is not None:
        read_lines(args.input)  # a missing file shows before the model is loaded
    model, tokenizer = evaluation.load_translator(args.model, dtype=args.dtype)
    translator = Translator(
        model,
        tokenizer,
        tokens_per_batch=args.tokens_per_batch,
        num_hypotheses=1 if args.nbest is None else args.nbest,
        with_scores=args.scores,
        **_search_options(args),
    )
    to_lines = partial(format_lines, is_numbered=args.nbest is not None, is_scored=args.scores)
    if is_resumable:
        elsewhere = ("run", "command", "debug", "model", "input", "output")
        settings = {name: value for name, value in vars(args).items() if name not in elsewhere}
        settings["model"] = evaluation.fingerprint_model(args.model)
        translate_file(translator, args.input, args.output, to_lines=to_lines, settings=settings, processes=processes)
    else:
        with _open_input(args.input) as file, _open_output(args.output) as output:
            windows = read_windows(file, name=str(args.input or "standard input"))
            translate_stream(translator, windows, output, to_lines=to_lines)
    processes.destroy_process_group()
    if translator.num_over_long:
        print(
            f"vaswani translate: {translator.num_over_long} sentences are longer than the "
            f"{tokenizer.model_max_length} tokens that training saw at most; they were translated whole, but less "
            f"well. Split them into sentences.",
            file=sys.stderr,
        )


def _is_replaceable(path: Path | None) -> bool:
    """Whether a new file may take the place of what is at `path`: not standard output, a pipe or a device."""
    return path is not None and (path.is_file() or not path.exists())


@contextlib.contextmanager
def _open_input(path: Path | None) -> Iterator[BinaryIO]:
    if path is None:
        yield sys.stdin.buffer
        return
    with path.open("rb") as file:
        yield file


@contextlib.contextmanager
def _open_output(path: Path | None) -> Iterator[TextIO]:
    if path is None:
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")
        yield sys.stdout
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="\n") as file:
        yield file


# score


def _add_score(commands) -> None:
    command = _add_command(commands, "score", run_score)
    command.add_argument("--model", required=True, help="model folder, run folder or Hub id")
    command.add_argument("--source", type=Path, required=True, help="UTF-8 text, one sentence a line")
    command.add_argument("--target", type=Path, required=True, help="their translations, one a line, same order")
    command.add_argument("--length_penalty", type=float, help="alpha of the GNMT penalty; the model's own by default")
    command.add_argument("--coverage_penalty", type=float, help="beta of the GNMT penalty; the model's own by default")
    command.add_argument("--tokens_per_batch", type=int, default=8_192, help="padded tokens of a batch, a side")


def run_score(args: argparse.Namespace) -> None:
    """Rate given translations: log P, tokens with </s>, and the score of section 6.1, tab-separated, a line a pair.

    vaswani score --model runs/base --source test.en --target test.de

    An empty line is the sentence that consists of </s> alone, and is rated like any other.
    """
    pairs = read_parallel_files(args.source, args.target)
    model, tokenizer = evaluation.load_translator(args.model)
    options = {"length_penalty": args.length_penalty, "coverage_penalty": args.coverage_penalty}
    found = score_pairs(model, tokenizer, pairs, tokens_per_batch=args.tokens_per_batch, **options)
    for log_prob, length, score in tqdm(found, unit=" sentences", file=sys.stderr, disable=None):
        print(f"{log_prob:.6f}\t{length}\t{score:.6f}")


# evaluate


def _add_evaluate(commands) -> None:
    command = _add_command(commands, "evaluate", run_evaluate)
    command.add_argument("--model", required=True, help="model folder, run folder or Hub id")
    command.add_argument("--test", nargs="+", required=True, help="source and reference, as for `vaswani prepare`")
    _add_languages(command)
    text = "of a Hub dataset, of a folder of .parquet or of the phrasebook: test, or validation"
    command.add_argument("--split", default="test", help=text)
    text = "sentences of the phrasebook to score"
    command.add_argument("--num_pairs", type=positive_int, default=1_000, help=text)
    command.add_argument("--tokenize", default="13a", help='sacreBLEU tokenizer; "none" for tokenised text')
    command.add_argument("--lowercase", action="store_true", help="compare without case")
    command.add_argument("--translations", type=Path, help="write the translations here")
    _add_search_options(command)


def run_evaluate(args: argparse.Namespace) -> None:
    """Translate a test set and print BLEU with its signature, perplexity and the search settings.

    vaswani evaluate --model runs/base --test newstest2014.en newstest2014.de
    """
    model, tokenizer = evaluation.load_translator(args.model)
    pairs = list(_reader(args.test, args, split=args.split, num_pairs=args.num_pairs, streaming=True)())
    if not pairs:
        raise ValueError(f"{' and '.join(args.test)} hold no sentence; there is nothing to score.")
    sources, references = zip(*pairs, strict=True)
    options = _search_options(args)
    with tqdm(total=len(pairs), unit=" sentences", file=sys.stderr, disable=None) as bar:
        hypotheses = translate(
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
    try:
        paths = draw_figures(maps.by_words(), args.output, word=args.word)
    except ImportError as error:  # it says how to install matplotlib
        raise ValueError(str(error)) from error
    paths.append(write_html(maps, args.output / "attention.html", title=args.source))
    print("\n".join(str(path) for path in paths))


# export


def _add_export(commands) -> None:
    command = _add_command(commands, "export", run_export)
    command.add_argument("--model", required=True, help="model folder, run folder or Hub id")
    command.add_argument("--format", choices=("ctranslate2", "onnx"), required=True)
    command.add_argument("--output", type=Path, required=True, help="new or empty folder")
    ctranslate2 = command.add_argument_group("CTranslate2")
    ctranslate2.add_argument("--quantization", help="of the weights: float32 (default), int8, int8_float16, ...")
    ctranslate2.add_argument("--max_positions", type=int, help="tokens of the longest sentence; 2048 if not given")


def run_export(args: argparse.Namespace) -> None:
    """Write a model for CTranslate2 or ONNX, with its tokenizer.

    vaswani export --model runs/base --format ctranslate2 --quantization int8 --output exports/base
    vaswani export --model runs/base --format onnx --output exports/base_onnx

    Greedy translations are those of `vaswani translate --num_beams 1`. CTranslate2's beam search has another length
    penalty and another end than the paper's; what is printed says which, and how to rescore its n-best lists.
    """
    names = ("quantization", "max_positions")
    options = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    if args.format == "onnx" and options:
        raise ValueError(f"--{' and --'.join(options)} is for --format ctranslate2: ONNX gets float32 and any length.")
    if args.output.is_dir() and any(args.output.iterdir()):
        raise ValueError(f"{args.output} is not empty: files of another model may not be mixed in. Name a new folder.")
    try:
        # Packages that no other command needs.
        if args.format == "ctranslate2":
            from .export import ctranslate2_converter as exporter
        else:
            from .export import onnx_export as exporter
    except ModuleNotFoundError as error:
        raise ValueError(
            f"--format {args.format} needs the package {error.name.split('.')[0]}, which is not installed: "
            f'pip install "vaswani-transformer[export]"'
        ) from error
    model, tokenizer = evaluation.load_translator(args.model)
    exporter.export_model(model, tokenizer, args.output, **options)
    print(exporter.HOW_TO_USE.format(folder=args.output))


if __name__ == "__main__":
    raise SystemExit(main())
