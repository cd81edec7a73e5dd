"""Translate a file line by line. Repeat the command to continue after an interruption.

vaswani translate --model runs/base --input test.en --output test.hyp.de
echo "A dog runs." | vaswani translate --model runs/base
vaswani translate --model runs/a --ensemble runs/b runs/c --input test.en --output test.hyp.de

On several devices: accelerate launch -m vaswani_transformer translate --model ... --input ... --output ...
Finished parts are kept in OUTPUT.partial, and OUTPUT is replaced at the end. Lines of standard input are translated as
they arrive.
"""

import argparse
import sys
from functools import partial

from ..bounds import Number
from .arguments import (
    OF_SEARCH,
    add_model,
    add_search_options,
    load_members,
    open_output,
    output_stream,
    take_given,
    text_stream,
)

# The names of the options on which the output depends. Interrupted work continues only if neither these options nor
# the models have changed.
OF_OUTPUT = (*OF_SEARCH, "dtype", "nbest", "scores", "tokens_per_batch")


def add_arguments(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add_model(command)
    add("--input", type=text_stream, help="UTF-8 text, one sentence per line; default: standard input")
    add("--output", type=output_stream, help="one translation per line; default: standard output")
    add(
        "--nbest",
        type=Number(1, 1_000),
        help="write this many translations of each sentence, each after the number of the sentence and a tab",
    )
    add(
        "--scores", action="store_true", help="write the score log P / length penalty and a tab before each translation"
    )
    add_search_options(command)


def run(args: argparse.Namespace) -> None:
    from ..files import digest_file
    from ..translation.files import find_processes, read_windows, translate_file, translate_stream
    from ..translation.translator import Translator, format_lines

    source, output = args.input, args.output
    processes = find_processes()
    # A resumable translation is written to a new file, which replaces OUTPUT at the end. So OUTPUT must be a file, not
    # standard output, a pipe or a device.
    is_replaceable = output is not None and (output.is_file() or not output.exists())
    is_resumable = source is not None and source.is_file() and is_replaceable
    if processes.num_processes > 1 and not is_resumable:
        raise ValueError(
            f"{processes.num_processes} processes can share a file, but not a pipe: name files as --input and --output."
        )
    first, *others = load_members(args)
    translator = Translator(
        first.model,
        first.tokenizer,
        tokens_per_batch=args.tokens_per_batch,
        num_hypotheses=args.nbest or 1,
        with_scores=args.scores,
        ensemble=[member.model for member in others],
        **take_given(args, *OF_SEARCH),
    )
    settings = {name: getattr(args, name) for name in OF_OUTPUT} | {
        "model": first.fingerprint,
        "ensemble": [member.fingerprint for member in others],
        "tokens_per_batch": translator.tokens_per_batch,
    }
    if code := getattr(args, "import"):
        settings["import"] = digest_file(code)
    del first, others  # The memory of the models is freed, unless the translator still needs them.
    to_lines = partial(format_lines, is_numbered=args.nbest is not None, is_scored=args.scores)
    if is_resumable:
        translate_file(translator, source, output, to_lines=to_lines, settings=settings, processes=processes)
    else:
        with open_output(output) as file:
            translate_stream(translator, read_windows(source), file, to_lines=to_lines)
    processes.destroy_process_group()
    for warning in translator.find_warnings():
        print(f"vaswani translate: {warning}", file=sys.stderr)
