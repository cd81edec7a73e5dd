import argparse
import re
import sys
from dataclasses import asdict

from tqdm import tqdm

from ..data.lines import read_lines
from ..evaluation import metrics
from ..evaluation.likelihood import compute_perplexity
from ..files import write_json
from ..model.generation_vaswani import SearchOptions
from ..model.pipeline_vaswani import LINE_BREAK
from ..translation.translator import translate
from .arguments import check_output, load_members, open_output, open_reader, search_options

BREAKS = re.compile(r"[\t\n\v\f\r\x1c-\x1e\x85\u2028\u2029]+")  # would begin another cell or row of the table


def run(args: argparse.Namespace) -> None:
    _evaluate_files(args) if args.model is None else _evaluate_model(args)


def _build_metrics(args: argparse.Namespace) -> dict[str, metrics.Metric]:
    language = args.target_language or "de"
    return metrics.build_metrics(tokenize=args.tokenize, lowercase=args.lowercase, language=language)


def _evaluate_model(args: argparse.Namespace) -> None:
    outputs = [path for path in (args.translations, args.table, args.json) if path is not None]
    for path in outputs:
        check_output(path, inputs=args.test)
        if outputs.count(path) > 1:
            raise ValueError(f"{path} is named for two outputs: name another file.")
    members = load_members(args)
    _, model, tokenizer, _ = members[0]
    source, target = members[0].languages or ("en", "de")
    args.source_language, args.target_language = args.source_language or source, args.target_language or target
    measures = _build_metrics(args)
    pairs = list(open_reader(args.test, args, split=args.split, num_pairs=args.num_pairs)())
    if not pairs:
        raise ValueError(f"{' and '.join(args.test)} hold no sentence; there is nothing to score.")
    sources, references = zip(*pairs, strict=True)
    options = search_options(args, members)
    with tqdm(total=len(pairs), unit=" sentences", file=sys.stderr, disable=None) as bar:
        size = args.tokens_per_batch
        hypotheses = translate(model, tokenizer, sources, tokens_per_batch=size, on_batch=bar.update, **options)
    if args.translations is not None:
        with open_output(args.translations) as output:
            output.writelines(LINE_BREAK.sub(" ", hypothesis) + "\n" for hypothesis in hypotheses)
    if args.table is not None:
        rows = [("source", "hypothesis", "reference"), *zip(sources, hypotheses, references, strict=True)]
        with open_output(args.table) as output:
            output.writelines("\t".join(BREAKS.sub(" ", text) for text in row) + "\n" for row in rows)
    found = metrics.compute_scores(hypotheses, references, measures)
    print(*found, sep="\n")
    value = compute_perplexity(model, tokenizer, pairs)
    found.append(metrics.Score(metrics.PERPLEXITY, value, "per sub-word, no label smoothing"))
    alone = f", {args.model} alone" if args.ensemble else ""
    print(f"perplexity {value:.3f} per sub-word, no label smoothing{alone}")
    further = "" if args.dtype is None else f"|dtype:{args.dtype}"
    further += "|split_sentences" if args.split_sentences else ""
    search = f"{SearchOptions.resolve(model.generation_config, **options)}{further}"
    models = [args.model, *args.ensemble]
    fingerprint = " + ".join(member.fingerprint for member in members)
    print(f"search {search}  model {' + '.join(models)}  fingerprint {fingerprint}")
    if args.json is not None:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        figures = {"search": search, "models": models, "fingerprint": fingerprint}
        write_json(args.json, {"scores": list(map(asdict, found))} | figures)


def _evaluate_files(args: argparse.Namespace) -> None:
    hypotheses, references = (list(read_lines(path)) for path in (args.hypotheses, args.references))
    print(*metrics.compute_scores(hypotheses, references, _build_metrics(args)), sep="\n")
