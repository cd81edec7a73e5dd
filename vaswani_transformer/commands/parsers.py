"""The arguments of each command of `vaswani`: one function per command, whose docstring is its help.

It imports little, so that help and usage errors appear at once. The file with the name of a command runs it.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

from ..attention import KINDS
from ..bounds import BOUNDS, describe_bounds, is_within_bounds

OF_FILES = ("hypotheses", "references", "target_language", "tokenize", "lowercase")  # arguments of `evaluate`
PHRASEBOOK = "phrasebook"  # a name of text: the built-in corpus


class CommandParser(argparse.ArgumentParser):
    """Print the usage of the command for unknown arguments; argparse would print that of `vaswani`."""

    # Returns why the arguments do not fit together, or `None`.
    find_fault: Callable[[argparse.Namespace], str | None] = staticmethod(lambda args: None)

    def parse_known_args(self, args=None, namespace=None) -> tuple[argparse.Namespace, list[str]]:
        namespace, unknown = super().parse_known_args(args, namespace)
        fault = f"unrecognized arguments: {' '.join(unknown)}" if unknown else self.find_fault(namespace)
        if fault:
            self.error(fault)
        return namespace, unknown


def output_path(text: str) -> Path:
    """Parse the name of a file or folder to write; an empty one would be the working directory."""
    if not text:
        raise argparse.ArgumentTypeError("expected a path, got none: is a variable of the shell not set?")
    return Path(text)


def add_number(command: argparse._ActionsContainer, name: str, **options) -> None:
    """Add the option `name`: a number within its bounds."""

    def parse(text: str) -> float:
        try:
            value = type(BOUNDS[name][0])(text)
        except ValueError:
            value = None
        if not is_within_bounds(name, value):
            raise argparse.ArgumentTypeError(f"expected {describe_bounds(name)}, got {text!r:.40}")
        return value

    command.add_argument(f"--{name}", type=parse, **options)


def add_model(command: argparse.ArgumentParser) -> None:
    command.add_argument("--model", required=True, help="model folder, run folder or Hub id")


def add_column_options(command: argparse.ArgumentParser) -> None:
    text = "column of the source in the header of .csv, or its key in .jsonl, .parquet and Hub datasets; if not "
    command.add_argument("--source_column", help=f"{text}given, the source language")
    command.add_argument("--target_column", help="the same for the target")


def add_search_options(command: argparse.ArgumentParser) -> None:
    decoding = command.add_argument_group("decoding, section 6.1; the model's own settings if not given")
    decoding.add_argument("--dtype", choices=("float32", "bfloat16", "float16"))
    add_number(decoding, "num_beams")
    add_number(decoding, "length_penalty", help="alpha of the GNMT penalty")
    add_number(decoding, "max_length_offset", help="limit of a translation: this many tokens more than its source")
    ensemble = {"nargs": "+", "default": [], "metavar": "MODEL"}
    decoding.add_argument("--ensemble", **ensemble, help="further models; their probabilities are averaged")
    text = "translate the sentences of a line one by one; needs sentencex"
    decoding.add_argument("--split_sentences", action="store_true", help=text)
    add_number(decoding, "tokens_per_batch", help="padded source tokens; default: 2,000 on a CPU, 8,192 elsewhere")


def add_recipe_options(command: argparse.ArgumentParser, *, default: str) -> None:
    command.add_argument("--recipe", help=f"a name of `vaswani recipes`, or a JSON file; default: {default}")
    options = {"action": "append", "default": [], "dest": "changes", "metavar": "FIELD=VALUE"}
    command.add_argument("--set", **options, help="change a field: model.dropout=0.3; may be repeated")


def prepare(command: argparse.ArgumentParser) -> None:
    """Learn a vocabulary and turn parallel text into token ids (section 5.1).

    vaswani prepare --train train.en train.de --dev dev.en dev.de --output data
    vaswani prepare --train a.en a.de --train b.csv --weights 1 4 --dev dev.en dev.de --output data

    With --train phrasebook --dev phrasebook the built-in synthetic corpus is used. Files may be compressed (.gz).
    To learn to parse: --task parsing --recipe parsing_wsj --train train.mrg --dev dev.mrg
    """
    text = "one or two names: source and target text files, a .csv, .tsv, .jsonl or .parquet file, a folder of "
    text += ".parquet, a Hub dataset (wmt/wmt14:de-en); once for each corpus"
    command.add_argument("--train", nargs="+", action="append", required=True, help=text)
    add_number(command, "weights", nargs="+", help="how many times an epoch has the pairs of each --train; default: 1")
    command.add_argument("--dev", nargs="+", required=True, help="the same for the development set")
    command.add_argument("--output", type=output_path, required=True, help="new folder for tokenizer and token ids")
    command.add_argument("--source_language", help="default: the ending of the first --train file, or en")
    command.add_argument("--target_language", help="the same for the target, or de")
    add_column_options(command)
    add_recipe_options(command, default="base_en_de")
    vocabulary = command.add_mutually_exclusive_group()
    add_number(vocabulary, "vocab_size", help="entries of the shared vocabulary to learn")
    text = "use the vocabulary of this model folder, run folder, prepared data or Hub id instead of learning one"
    vocabulary.add_argument("--keep_vocabulary", metavar="MODEL", help=text)
    add_number(command, "num_pairs", default=30_000, help="training pairs of the phrasebook to write")
    parsing = command.add_argument_group("parsing, section 6.3")
    parsing.add_argument("--task", choices=("translation", "parsing"), default="translation", help="parsing: trees")
    parsing.add_argument("--copy_words", action="store_true", help="write the words of a tree, not XX")
    filters = command.add_argument_group("filters; dropped pairs are counted in the output")
    add_number(filters, "max_length_ratio", help="drop pairs whose longer side has more times as many words")
    filters.add_argument("--drop_duplicates", action="store_true")

    def find_fault(args: argparse.Namespace) -> str | None:
        if args.copy_words and args.task != "parsing":
            return "--copy_words is about trees: add --task parsing, or leave it out."
        if args.weights and len(args.weights) != len(args.train):
            return f"--weights: expected one for each --train, {len(args.train)}, got {len(args.weights)}."
        return None

    command.find_fault = find_fault


def train(command: argparse.ArgumentParser) -> None:
    """Train a recipe on prepared data (section 5); start it again to resume after an interruption.

    vaswani train --recipe multi30k_tiny --data data --output runs/multi30k

    On several devices: accelerate launch -m vaswani_transformer train --data data --output runs/base
    On two CPU cores two processes are faster than two threads:
    ACCELERATE_USE_CPU=true torchrun --nproc_per_node 2 -m vaswani_transformer train --threads 1 --data ... --output ...
    After SIGTERM or Ctrl+C the present update is saved, and the exit code is 75. The same command continues the run, so
    does one without --recipe and --set. With a larger --num_updates it continues a finished run.
    """
    command.add_argument("--data", type=Path, required=True, help="folder written by `vaswani prepare`")
    command.add_argument("--output", type=output_path, required=True, help="run folder, new or to continue")
    add_recipe_options(command, default="the recipe of the run that goes on, or of the data")
    command.add_argument("--init_from", metavar="MODEL", help="start from its weights (fine-tuning)")
    add_number(command, "seed", help="default: that of the run, or 0")
    add_number(command, "num_updates", help="number of updates; default: that of the recipe")
    add_number(command, "divide_widths", metavar="DIVISOR", help="divides d_model, d_ff, d_k and d_v of the recipe")
    add_number(command, "accumulation_steps", help="micro-batches of an update on each process; more need less memory")
    command.add_argument(
        "--mixed_precision",
        choices=("no", "bf16", "fp16"),
        help="default: that of the run, the launcher's, or by device",
    )
    add_number(command, "log_interval", default=50, help="updates between two lines of the log")
    command.add_argument("--dev_bleu", action="store_true", help="translate the development set at each evaluation")
    add_number(command, "threads", help="CPU threads of each process")


def recipes(command: argparse.ArgumentParser) -> None:
    """List the recipes, or show one with all its fields, as a file to change and to give to `vaswani prepare --recipe`.

    vaswani recipes
    vaswani recipes multi30k_tiny > mine.json
    """
    command.add_argument("name", nargs="?", help="name of a recipe, or a JSON file")


def average(command: argparse.ArgumentParser) -> None:
    """Average the weights of the last checkpoints of a run (section 6.1).

    vaswani average --run runs/base --last 3 --output runs/base/averaged
    """
    command.add_argument("--run", type=Path, dest="run_folder", required=True, help="run folder")
    add_number(command, "last", help="number of checkpoints to average; default: that of the recipe")
    command.add_argument("--output", type=output_path, required=True, help="new or empty folder")


def translate(command: argparse.ArgumentParser) -> None:
    """Translate a file, one line for one line; start it again to resume after an interruption.

    vaswani translate --model runs/base --input test.en --output test.hyp.de
    echo "A dog runs." | vaswani translate --model runs/base
    vaswani translate --model runs/a --ensemble runs/b runs/c --input test.en --output test.hyp.de

    On several devices: accelerate launch -m vaswani_transformer translate --model ... --input ... --output ...
    Finished parts are kept in OUTPUT.partial; OUTPUT is replaced at the end. Lines of standard input are translated as
    they arrive.
    """
    add_model(command)
    command.add_argument("--input", type=Path, help="UTF-8 text, one sentence per line; standard input if not given")
    command.add_argument("--output", type=output_path, help="one translation per line; standard output if not given")
    add_number(command, "nbest", help="translations of each sentence, best first, after its number and a tab")
    command.add_argument("--scores", action="store_true", help="before each text: log P / lp, and a tab")
    command.add_argument("--alignments", type=output_path, help="also write the word alignments that `align` finds")
    add_search_options(command)


def check(command: argparse.ArgumentParser) -> None:
    """Translate the example that was kept beside the weights, and compare.

    vaswani check --model runs/base
    """
    command.add_argument("--model", type=Path, required=True, help="model folder or run folder")


def score(command: argparse.ArgumentParser) -> None:
    """Rate given translations: log P, tokens with </s>, and the score of section 6.1, tab-separated, one line per pair.

    vaswani score --model runs/base --source test.en --target test.de
    """
    add_model(command)
    command.add_argument("--source", type=Path, required=True, help="UTF-8 text, one sentence per line")
    command.add_argument("--target", type=Path, required=True, help="their translations, one per line, same order")
    add_number(command, "length_penalty", help="alpha of the GNMT penalty; the model's own by default")
    add_number(command, "tokens_per_batch", default=8_192, help="padded tokens of a batch, per side")


def evaluate(command: argparse.ArgumentParser) -> None:
    """Score a model's translations of a test set, or given translations, in all the ways that are published.

    vaswani evaluate --model runs/base --test newstest2014.en newstest2014.de
    vaswani evaluate --hypotheses ours.de --references newstest2014.de

    Prints sacreBLEU with its signature, and BLEU as the paper counted it; for a model also perplexity, search settings
    and fingerprint; for several files whether they differ from the first (paired bootstrap).
    """
    scored = command.add_mutually_exclusive_group(required=True)
    scored.add_argument("--model", help="model folder, run folder or Hub id")
    scored.add_argument("--hypotheses", type=Path, help="or a file of translations")
    command.add_argument("--test", nargs="+", help="of a model: source and reference, as for `vaswani prepare`")
    command.add_argument("--references", type=Path, help="of --hypotheses: reference translations, one per line")
    command.add_argument("--source_language", help="default: the source language of the model, or en")
    command.add_argument("--target_language", help="of the paper's BLEU; default: that of the model, or de")
    add_column_options(command)
    command.add_argument("--split", default="test", help="of a Hub dataset, a folder of .parquet or the phrasebook")
    add_number(command, "num_pairs", default=1_000, help="sentences of the phrasebook to score")
    command.add_argument("--tokenize", default="13a", help='sacreBLEU tokenizer; "none" for tokenised text')
    command.add_argument("--lowercase", action="store_true", help="compare without case")
    command.add_argument("--translations", type=output_path, help="of a model: file to write its translations to")
    command.add_argument("--table", type=output_path, help="of a model: source, hypothesis, reference, tab-separated")
    command.add_argument("--json", type=output_path, help="of a model: its scores, for `vaswani card --score`")
    add_search_options(command)

    def find_fault(args: argparse.Namespace) -> str | None:
        if args.model is not None:
            if args.test is None or args.references is not None:
                return "a model translates and is scored on --test, source and reference; --references is for files."
            return None
        if args.references is None:
            return "--hypotheses are scored against --references: name the file."
        names = [action.dest for action in command._actions if action.dest not in (*OF_FILES, "help")]
        given = [f"--{name}" for name in names if getattr(args, name) != command.get_default(name)]
        return f"{', '.join(given)}: for a --model only, not for --hypotheses. Leave it out." if given else None

    command.find_fault = find_fault


def parse(command: argparse.ArgumentParser) -> None:
    """Parse sentences into constituency trees (section 6.3); one tree for one line.

    vaswani parse --model runs/parsing --input sentences.txt --output trees.mrg
    echo "The dog barks ." | vaswani parse --model runs/parsing

    Spaces separate words, and punctuation is a word. An empty line stays empty, and one of more than 1,000 sub-words is
    refused. Tags are XX, or with --gold those of the
    gold trees, whose traces and function tags do not count. F1 is EVALB's.
    """
    add_model(command)
    texts = command.add_mutually_exclusive_group()
    texts.add_argument("--input", type=Path, help="UTF-8 text, a sentence per line; standard input if not given")
    texts.add_argument("--gold", type=Path, help="bracketed trees: parse their words, and print the bracket F1")
    command.add_argument("--output", type=output_path, help="one tree per line; standard output if not given")
    command.add_argument("--unconstrained", action="store_true", help="search all outputs as the paper did")
    search = command.add_argument_group("search, section 6.3; the model's own settings if not given")
    add_number(search, "num_beams")
    add_number(search, "length_penalty", help="alpha of the GNMT penalty")
    add_number(search, "tokens_per_batch", default=1_000, help="padded source tokens of a batch")


def cost(command: argparse.ArgumentParser) -> None:
    """Training cost of a run in FLOP, by the formula of table 2 and by its parameters and tokens, beside the paper's.

    vaswani cost --run runs/base --device A100

    The paper's formula is time x devices x sustained rate: the work that the devices could have done in that time.
    """
    command.add_argument("--run", type=Path, required=True, dest="run_folder", help="run folder")
    command.add_argument("--device", help="P100, V100, A100 or H100, or FLOP per second that it sustains")
    add_number(command, "devices", help="how many; one per process of the run if not given")


def attention(command: argparse.ArgumentParser) -> None:
    """Draw the attention of the heads as in figures 3 to 5: SVG, PNG, and one page to explore.

    vaswani attention --model runs/base --source "The dog that barks runs." --output pictures
    vaswani attention --model runs/base --source "The dog runs." --output pictures --kind cross --layer 5 --word Hund
    """
    add_model(command)
    command.add_argument("--source", required=True, help="the sentence")
    command.add_argument("--target", help="its translation; the model's own if not given")
    command.add_argument("--output", type=output_path, required=True, help="folder for the pictures and the page")
    command.add_argument(
        "--word", help="draw this word alone; default in figures 3 and 4: a word that attends far away"
    )
    chosen = command.add_argument_group("one drawing, instead of figures 3 to 5")
    chosen.add_argument("--kind", choices=tuple(KINDS), help="self-attention, or cross; default: encoder")
    add_number(chosen, "layer", help="from 1; the next to last if not given, as in the paper")
    add_number(chosen, "heads", nargs="+", help="from 1; all if not given")


def heads(command: argparse.ArgumentParser) -> None:
    """Measure what each head attends to: the word before, the same word, the end, words far away, a diagonal.

    vaswani heads --model runs/base --source test.en --target test.de

    A score is 0 for attention spread evenly, and 1 for attention along this relation alone.
    """
    add_model(command)
    command.add_argument("--source", type=Path, required=True, help="UTF-8 text, one sentence per line")
    command.add_argument("--target", type=Path, help="their translations, same order; the model's own if not given")


def align(command: argparse.ArgumentParser) -> None:
    """Align the words of sentences and given translations, by the model's attention.

    vaswani align --model runs/base --source test.en --target test.de --output test.align

    Writes pairs `i-j` for each line, source word and target word counted from 0, as fast_align does. White space
    separates words. `vaswani translate --alignments FILE` does it for the model's own translations.
    """
    add_model(command)
    command.add_argument("--source", type=Path, required=True, help="UTF-8 text, one sentence per line")
    command.add_argument("--target", type=Path, required=True, help="their translations, in the same order")
    command.add_argument("--output", type=output_path, help="default: standard output")
    command.add_argument("--gold", type=Path, help="file of pairs aligned by hand: print the alignment error rate")


def export(command: argparse.ArgumentParser) -> None:
    """Write a model for CTranslate2 or ONNX, with its tokenizer.

    vaswani export --model runs/base --format ctranslate2 --quantization int8 --output exports/base
    vaswani export --model runs/base --format onnx --output exports/base_onnx

    The README of vaswani_transformer/export says how to call both, and how CTranslate2's beam search differs.
    """
    add_model(command)
    command.add_argument("--format", choices=("ctranslate2", "onnx"), required=True)
    command.add_argument("--output", type=output_path, required=True, help="new or empty folder")
    ctranslate2 = command.add_argument_group("CTranslate2")
    ctranslate2.add_argument("--quantization", help="of the weights: float32 (default), int8, int8_float16, ...")
    add_number(ctranslate2, "max_positions", help="tokens of the longest sentence; 2048 if not given")


def convert(command: argparse.ArgumentParser) -> None:
    """Convert a model of MarianMT, OPUS-MT or fairseq to ours, or ours to MarianMT, with its tokenizer.

    vaswani convert --from marian --model Helsinki-NLP/opus-mt-en-de --output models/en_de
    vaswani convert --from fairseq --model wmt16/model.pt --output models/wmt16
    vaswani convert --to marian --model runs/base --output models/marian

    Logits are equal, and so are translations with the same search. The command prints what Marian cannot represent.
    """
    direction = command.add_mutually_exclusive_group(required=True)
    direction.add_argument("--from", dest="source_system", choices=("marian", "fairseq"), help="the origin of --model")
    direction.add_argument("--to", dest="target_system", choices=("marian",), help="the system to write for")
    command.add_argument("--model", required=True, help="folder or Hub id; fairseq's .pt file, beside its dict.*.txt")
    command.add_argument("--output", type=output_path, required=True, help="new or empty folder")


def card(command: argparse.ArgumentParser) -> None:
    """Write the card of a model from its run folder: metadata, use, recipe, cost, scores, limits.

    vaswani evaluate --model runs/base --test newstest2014.en newstest2014.de --json newstest2014.json
    vaswani card --run runs/base --score "WMT 2014 newstest2014" newstest2014.json --license apache-2.0

    `vaswani push` uploads the file as you have edited it. An existing card is replaced only if --output names it.
    """
    command.add_argument("--run", type=Path, required=True, dest="run_folder", help="folder of a finished run")
    options = {"nargs": 2, "action": "append", "default": [], "metavar": ("DATASET", "FILE")}
    command.add_argument("--score", **options, help="a test set, and its file of `evaluate --json`; may be repeated")
    command.add_argument("--output", type=output_path, help="file to write; RUN/model/README.md if not given")
    facts = command.add_argument_group("facts that no run folder knows; the card says which are missing")
    facts.add_argument("--name", default="", help="title; the folder's name if not given")
    facts.add_argument("--data", default="", help="the training data, in words")
    facts.add_argument("--dataset", default="", help="the same as a dataset of the Hub, such as wmt/wmt14")
    facts.add_argument("--license", default="", help="of the weights, in the Hub's terms: apache-2.0, cc-by-4.0, ...")
    facts.add_argument("--license_name", default="", help="name of the licence, for --license other")
    facts.add_argument("--hardware", default="", help="devices it was trained on, in words")


def push(command: argparse.ArgumentParser) -> None:
    """Upload a model with its tokenizer, code and card to the Hugging Face Hub, and nothing else.

    vaswani push --model runs/base --repo_id me/base --private

    The card is README.md beside the weights; for a run without one `vaswani card` writes it. Log in first
    (`hf auth login`, or HF_TOKEN in the environment).
    """
    command.add_argument("--model", required=True, help="model folder or run folder")
    command.add_argument("--repo_id", required=True, help="OWNER/NAME on the Hugging Face Hub; created if missing")
    command.add_argument("--private", action="store_true", help="a new repository is seen by its owners only")


COMMANDS = (
    *(recipes, prepare, train, average, translate, check, score, evaluate, parse, cost),
    *(attention, heads, align, export, convert, card, push),
)
