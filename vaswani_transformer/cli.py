"""The Transformer of "Attention Is All You Need": text in, training, a model on disk, translation out.

vaswani prepare --train train.en train.de --dev dev.en dev.de --output data
vaswani train --data data --output runs/base
vaswani translate --model runs/base --input test.en --output test.hyp.de
"""

import argparse
import os
import sys
from collections.abc import Sequence

import transformers

from .commands import (
    attention,
    average,
    card,
    convert,
    cost,
    demo,
    evaluate,
    export,
    heads,
    parse,
    plot,
    prepare,
    push,
    score,
    train,
    translate,
)
from .loading import is_panic
from .memory import keep_few_kernels, keep_freed_memory
from .training.interruption import EXIT_CODE, Interrupted

COMMANDS = (
    prepare,
    train,
    average,
    translate,
    score,
    evaluate,
    parse,
    cost,
    plot,
    attention,
    heads,
    demo,
    export,
    convert,
    card,
    push,
)
USER_ERRORS = (ValueError, OSError, FloatingPointError, MemoryError)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="vaswani", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--debug", action="store_true", help="show where in the code an error arose")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for command in COMMANDS:
        command.add(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    transformers.utils.logging.disable_progress_bar()  # of loading and saving weights
    keep_few_kernels()
    keep_freed_memory()
    try:
        args.run(args)
    except BrokenPipeError:
        # Whoever read the output has seen enough (`vaswani translate ... | head`). What is still buffered must
        # not be flushed into the closed pipe at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except Interrupted as error:
        print(f"vaswani {args.command}: {error}", file=sys.stderr)
        return EXIT_CODE
    except BaseException as error:
        if args.debug or not (isinstance(error, USER_ERRORS) or is_panic(error)):
            raise
        message = str(error).strip().replace("\n", " ")  # one line, also where a library wrote several
        if is_panic(error):
            folder = getattr(args, "tokenizer", None) or getattr(args, "model", "the model")
            message = (
                f"a regular expression in tokenizer.json of {folder} gives up on this text ({message}): the file is "
                f"damaged, or made to do harm. Take another model."
            )
        print(f"vaswani {args.command}: {message}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
