"""The Transformer of "Attention Is All You Need": text in, training, a model on disk, translation out.

vaswani prepare --train train.en train.de --dev dev.en dev.de --output data
vaswani train --data data --output runs/base
vaswani translate --model runs/base --input test.en --output test.hyp.de
"""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module

from .commands.parsers import COMMANDS, CommandParser
from .memory import is_out_of_memory, keep_few_kernels, keep_freed_memory
from .training.interruption import EXIT_CODE, Interrupted

USER_ERRORS = (ValueError, OSError, FloatingPointError, MemoryError)


class ShowVersion(argparse.Action):
    """Prints the version of the package, looked up at this moment only."""

    def __call__(self, parser: argparse.ArgumentParser, *_) -> None:
        from . import __version__

        print(f"{parser.prog} {__version__}")
        parser.exit()


def build_parser() -> argparse.ArgumentParser:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="vaswani", description=__doc__, formatter_class=formatter)
    parser.add_argument("--version", action=ShowVersion, nargs=0, help="show the version of the package")
    parser.add_argument("--debug", action="store_true", help="show where in the code an error arose")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command", parser_class=CommandParser)
    for add_arguments in COMMANDS:
        text = add_arguments.__doc__
        first_line = text.strip().split("\n")[0]
        command = commands.add_parser(
            add_arguments.__name__, help=first_line, description=text, formatter_class=formatter
        )
        add_arguments(command)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    keep_few_kernels()
    keep_freed_memory()
    # Imported late: imports of commands take seconds, and help and usage errors come before them.
    command = import_module(f".commands.{args.command}", __package__)
    if "transformers" in sys.modules:  # of those who need it
        sys.modules["transformers"].utils.logging.disable_progress_bar()  # of loading and saving weights
    try:
        command.run(args)
    except BrokenPipeError:
        # The reader of the output has closed it (`vaswani translate ... | head`). Buffered text must not be flushed
        # into the closed pipe at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except Interrupted as error:
        print(f"vaswani {args.command}: {error}", file=sys.stderr)
        return EXIT_CODE
    except KeyboardInterrupt:
        if args.debug:
            raise
        print(f"vaswani {args.command}: stopped by Ctrl+C", file=sys.stderr)
        return 128 + signal.SIGINT  # as a shell reports it
    except BaseException as error:
        from .loading import is_panic

        if args.debug or not (isinstance(error, USER_ERRORS) or is_panic(error) or is_out_of_memory(error)):
            raise
        message = str(error).strip().replace("\n", " ")  # one line, also where a library wrote several
        if is_panic(error):
            folder = getattr(args, "keep_vocabulary", None) or getattr(args, "model", "the model")
            message = (
                f"a regular expression in tokenizer.json of {folder} gives up on this text ({message}): the file is "
                f"damaged, or made to do harm. Take another model."
            )
        elif is_out_of_memory(error):
            reason = str(error).splitlines()[0]
            advice = "shorter sentences"
            if hasattr(args, "tokens_per_batch"):
                advice = "a smaller --tokens_per_batch, or shorter sentences"
            elif hasattr(args, "accumulation_steps"):
                advice = "larger --accumulation_steps, or --set tokens_per_batch=..."
            message = f"out of memory ({reason}): give {advice}."
        print(f"vaswani {args.command}: {message}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
