"""Compute the scores that papers report for translations of a test set. A model or a file gives the translations.

vaswani evaluate --model runs/base --test newstest2014.en newstest2014.de
vaswani evaluate --hypotheses ours.de --references newstest2014.de
zcat theirs.de.gz | vaswani evaluate --hypotheses - --references a.de b.de

The command prints scores of sacreBLEU with their signatures, and BLEU as the paper counted it. For a model it also
prints the perplexity, the settings of the search and the fingerprint of the model.
"""

import argparse
import re

from ..bounds import Number
from .arguments import (
    OF_SEARCH,
    add_column_options,
    add_search_options,
    corpus_name,
    load_members,
    open_output,
    output_path,
    take_given,
    text_path,
)

OF_FILES = ("hypotheses", "references", "target_language", "tokenize", "lowercase")  # allowed with --hypotheses
# the options of a search that are printed beside its scores
PRINTED_OPTIONS = ("num_beams", "length_penalty", "length_penalty_type", "max_length_offset", "early_stopping")
BREAKS = re.compile(r"[\t\n\v\f\r\x1c-\x1e\x85\u2028\u2029]+")  # would begin a cell or row of --table


def add_arguments(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    scored = command.add_mutually_exclusive_group(required=True)
    scored.add_argument("--model", help="model folder, run folder or Hub id")
    scored.add_argument("--hypotheses", type=text_path, help="or a file of translations; - for standard input")
    add(
        "--test",
        type=corpus_name,
        nargs="+",
        help="with --model: test set: two text files, or another form that `prepare --train` takes",
    )
    add(
        "--references",
        type=text_path,
        nargs="+",
        default=[],
        help="files with one reference translation per line; with --model, they are added to the references in --test",
    )
    default = "of the model, else as in the endings of the --test files, else"
    add("--source_language", help=f"default: the source language {default} en")
    add("--target_language", help=f"language for the paper's BLEU; default: the target language {default} de")
    add_column_options(command)
    add(
        "--split",
        default="test",
        help="which split to read, if the test set is a Hub dataset, a folder of .parquet files or the phrasebook",
    )
    add(
        "--num_pairs",
        type=Number(1, 100_000_000),
        default=1_000,
        help="with --test phrasebook, the built-in corpus of made-up sentences: number of pairs",
    )
    add("--tokenize", default="13a", help='sacreBLEU tokenizer; "none" for tokenised text')
    add("--lowercase", action="store_true", help="compare without case")
    add("--translations", type=output_path, help="with --model: file for its translations")
    add("--table", type=output_path, help="with --model: file for a table of source, hypothesis and reference")
    add("--json", type=output_path, help="with --model: file for its scores, which `vaswani card --score` reads")
    add_search_options(command)


def find_fault(args: argparse.Namespace) -> str | None:
    if args.model is not None:
        return None if args.test else "--model needs a test set to translate: name source and reference by --test."
    if not args.references:
        return "--hypotheses needs reference translations: name their files by --references."
    defaults = vars(args.parser.parse_args(["--hypotheses", "FILE"]))
    given = [f"--{name}" for name, value in defaults.items() if name not in OF_FILES and getattr(args, name) != value]
    return f"{', '.join(given)}: only with --model, not with --hypotheses. Leave these options out." if given else None


def run(args: argparse.Namespace) -> None:
    from ..data.lines import read_lines
    from ..evaluation.metrics import build_metrics, compute_scores

    if args.model is not None:
        _evaluate_model(args)
        return
    hypotheses, *references = (list(read_lines(path)) for path in (args.hypotheses, *args.references))
    metrics = build_metrics(tokenize=args.tokenize, lowercase=args.lowercase, language=args.target_language or "de")
    print(*compute_scores(hypotheses, references, metrics), sep="\n")


def _evaluate_model(args: argparse.Namespace) -> None:
    """Translate the test set, and print all scores."""
    from tqdm import tqdm

    from ..data.lines import read_lines
    from ..data.sources import Source, find_languages
    from ..evaluation.likelihood import compute_perplexity
    from ..evaluation.metrics import PERPLEXITY, Score, build_metrics, compute_scores
    from ..files import write_json
    from ..model.pipeline_vaswani import LINE_BREAK
    from ..model.search_vaswani import SearchOptions
    from ..translation.translator import translate

    names = [args.model, *args.ensemble]
    first, *others = load_members(args)
    source, target = first.languages or find_languages(args.test) or ("en", "de")
    languages = (args.source_language or source, args.target_language or target)
    metrics = build_metrics(tokenize=args.tokenize, lowercase=args.lowercase, language=languages[1])
    columns = (args.source_column, args.target_column)
    pairs = list(Source(args.test, languages, columns, split=args.split, num_pairs=args.num_pairs).read())
    if not pairs:
        raise ValueError(f"{' and '.join(args.test)} hold no sentence to score.")
    sources, targets = zip(*pairs, strict=True)
    references = [targets, *(list(read_lines(path)) for path in args.references)]
    options = take_given(args, *OF_SEARCH, "tokens_per_batch") | {"ensemble": [member.model for member in others]}
    with tqdm(total=len(pairs), unit=" sentences", disable=None) as bar:
        hypotheses = translate(first.model, first.tokenizer, sources, on_batch=bar.update, **options)
    if args.translations is not None:
        with open_output(args.translations) as output:
            output.writelines(LINE_BREAK.sub(" ", hypothesis) + "\n" for hypothesis in hypotheses)
    if args.table is not None:
        rows = [("source", "hypothesis", "reference"), *zip(sources, hypotheses, targets, strict=True)]
        with open_output(args.table) as output:
            output.writelines("\t".join(BREAKS.sub(" ", text) for text in row) + "\n" for row in rows)
    scores = compute_scores(hypotheses, references, metrics)
    how = "per sub-word, no label smoothing"
    perplexity = Score(PERPLEXITY, compute_perplexity(first.model, first.tokenizer, pairs), how)
    scope = f", {args.model} alone" if others else ""
    search_options = SearchOptions.resolve(first.model.generation_config, **options)
    search = "|".join(f"{name}:{getattr(search_options, name)}" for name in PRINTED_OPTIONS)
    search += "" if args.dtype is None else f"|dtype:{args.dtype}"
    search += "|split_sentences" if args.split_sentences else ""
    fingerprint = " + ".join(member.fingerprint for member in (first, *others))
    # The file is written before the scores are printed: if the reader of the output closed the pipe, as `head` does,
    # printing ends the command.
    if args.json is not None:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        figures = [score._asdict() for score in (*scores, perplexity)]
        write_json(args.json, {"scores": figures, "search": search, "models": names, "fingerprint": fingerprint})
    print(*scores, f"{PERPLEXITY} {perplexity.value:.3f} {how}{scope}", sep="\n")
    print(f"search {search}  model {' + '.join(names)}  fingerprint {fingerprint}")
