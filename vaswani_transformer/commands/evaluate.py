"""`vaswani evaluate`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from .. import loading
from ..data.corpus import read_lines
from ..evaluation import perplexity, scores
from ..translation.translator import translate
from .arguments import add_command, add_search_options, open_output, open_reader, positive_int, search_options
from .tables import format_table

# What --hypotheses have no use for.
OF_MODELS = (
    *("test", "source_language", "split", "num_pairs", "translations", "num_beams", "length_penalty"),
    *("coverage_penalty", "max_length_offset", "ensemble", "shortlist", "tokens_per_batch", "dtype"),
)


def add(commands) -> None:
    command = add_command(commands, "evaluate", run)
    scored = command.add_mutually_exclusive_group(required=True)
    scored.add_argument("--model", help="model folder, run folder or Hub id")
    text = "or translations to score without a model, one a line; of several files, each is compared with the first"
    scored.add_argument("--hypotheses", type=Path, nargs="+", help=text)
    command.add_argument("--test", nargs="+", help="of a model: source and reference, as for `vaswani prepare`")
    command.add_argument("--references", type=Path, help="of --hypotheses: what they should be, one a line")
    command.add_argument("--source_language", help="where not given, that of the model's own task, or en")
    text = "the paper's BLEU tokenises by its rules; where not given, that of the model's own task, or de"
    command.add_argument("--target_language", help=text)
    text = "of a Hub dataset, of a folder of .parquet or of the phrasebook: test, or validation"
    command.add_argument("--split", default="test", help=text)
    text = "sentences of the phrasebook to score"
    command.add_argument("--num_pairs", type=positive_int, default=1_000, help=text)
    command.add_argument("--tokenize", default="13a", help='sacreBLEU tokenizer; "none" for tokenised text')
    command.add_argument("--lowercase", action="store_true", help="compare without case")
    command.add_argument("--translations", type=Path, help="of a model: write its translations here")
    add_search_options(command)
    command.set_defaults(of_models={name: command.get_default(name) for name in OF_MODELS})


def run(args: argparse.Namespace) -> None:
    """Score a model's translations of a test set, or given translations, in all the ways that are published.

    vaswani evaluate --model runs/base --test newstest2014.en newstest2014.de
    vaswani evaluate --hypotheses theirs.de ours.de --references newstest2014.de

    Prints BLEU as sacreBLEU counts it, with its signature, and as the paper counted it; of a model also the perplexity,
    the search settings and the model's fingerprint; of several files whether they differ from the first (paired
    bootstrap).
    """
    if args.model is not None:
        _evaluate_model(args)
    else:
        _evaluate_files(args)


def _build_metrics(args: argparse.Namespace) -> dict[str, scores.Metric]:
    language = args.target_language or "de"
    return scores.build_metrics(tokenize=args.tokenize, lowercase=args.lowercase, language=language)


def _evaluate_model(args: argparse.Namespace) -> None:
    if args.test is None or args.references is not None:
        raise ValueError("a model translates and is scored on --test, source and reference; --references is for files.")
    model, tokenizer = loading.load_translator(args.model, dtype=args.dtype)
    source, target = loading.find_languages(getattr(model.config, "custom_pipelines", None)) or ("en", "de")
    args.source_language, args.target_language = args.source_language or source, args.target_language or target
    metrics = _build_metrics(args)
    pairs = list(open_reader(args.test, args, split=args.split, num_pairs=args.num_pairs, streaming=True)())
    if not pairs:
        raise ValueError(f"{' and '.join(args.test)} hold no sentence; there is nothing to score.")
    sources, references = zip(*pairs, strict=True)
    options = search_options(args, tokenizer)
    with tqdm(total=len(pairs), unit=" sentences", file=sys.stderr, disable=None) as bar:
        hypotheses = translate(
            model,
            tokenizer,
            sources,
            tokens_per_batch=args.tokens_per_batch,
            on_batch=bar.update,
            **options,
        )
    if args.translations is not None:
        with open_output(args.translations) as output:
            output.writelines(f"{hypothesis}\n" for hypothesis in hypotheses)
    for score in scores.compute_scores(hypotheses, references, metrics):
        print(score)
    value = perplexity.compute_perplexity(model, tokenizer, pairs)
    alone = f", {args.model} alone" if args.ensemble else ""
    print(f"perplexity {value:.3f} per sub-word, no label smoothing{alone}")
    models = [args.model, *args.ensemble]
    further = {"shortlist": args.shortlist, "dtype": args.dtype}
    further = "".join(f"|{name}:{value}" for name, value in further.items() if value is not None)
    print(
        f"search {perplexity.describe_search(model, **options)}{further}  model {' + '.join(models)}  "
        f"fingerprint {' + '.join(map(loading.fingerprint_model, models))}"
    )


def _evaluate_files(args: argparse.Namespace) -> None:
    if args.references is None:
        raise ValueError("--hypotheses are scored against --references: name the file.")
    if given := [f"--{name}" for name, default in args.of_models.items() if getattr(args, name) != default]:
        raise ValueError(f"{', '.join(given)}: for a --model only, not for --hypotheses. Leave it out.")
    metrics = _build_metrics(args)
    references = list(read_lines(args.references))
    systems = {str(path): list(read_lines(path)) for path in args.hypotheses}
    if len(systems) == 1:
        for score in scores.compute_scores(*systems.values(), references, metrics):
            print(score)
    else:
        print(_format_comparisons(list(systems), scores.compare_systems(systems, references, metrics)))


def _format_comparisons(systems: Sequence[str], comparisons: Sequence[scores.Comparison]) -> str:
    rows = [(comparison.name, *map(_format_result, comparison.results)) for comparison in comparisons]
    signatures = [f"{comparison.name}  {comparison.signature}" for comparison in comparisons]
    legend = (
        "+-: half the 95 % interval. p: how likely as large a difference from the first is, were both equally good."
    )
    return "\n".join([format_table(("", *systems), rows), "", legend, *signatures])


def _format_result(result: scores.Result) -> str:
    significance = "" if result.p_value is None else f"  p {result.p_value:.3f}"
    return f"{result.score:.2f} +- {result.ci:.2f}{significance}"
