"""The Transformer of "Attention Is All You Need": text in, training, a model on disk, translation out.

vaswani prepare --train train.en train.de --dev dev.en dev.de --output data
vaswani train --data data --output runs/base
vaswani translate --model runs/base --input test.en --output test.hyp.de
"""

import argparse
import io
import os
import signal
import sys
import warnings
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module

from . import __version__
from .commands import COMMANDS
from .memory import tune_memory
from .training.interruption import EXIT_CODE, Interrupted

# Their messages are for users; other errors are shown with the name of their class.
USER_ERRORS = (ValueError, OSError, FloatingPointError, ImportError)
# Packages that come with an extra of this one.
EXTRAS = {"matplotlib": "plots", "ctranslate2": "export", "onnxscript": "export", "tensorboard": "tensorboard"}


class Messages(io.FileIO):
    """Standard error: where a message cannot be written, as on a full disk, it is lost, and the work goes on."""

    def write(self, data: bytes) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:  # the reader has ended the work
            raise
        except OSError:
            return len(data)


def build_parser() -> argparse.ArgumentParser:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="vaswani", description=__doc__, formatter_class=formatter)
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    parser.add_argument("--debug", action="store_true", help="show where in the code an error arose")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for module in COMMANDS:
        name, text = module.__name__.rpartition(".")[2], module.__doc__
        command = commands.add_parser(name, help=text.partition("\n")[0], description=text, formatter_class=formatter)
        module.add_arguments(command)
        command.set_defaults(module=module, parser=command)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command, or list them if none is given. Errors are one line on standard error, a traceback with --debug."""
    _prepare_streams()
    args, unknown = build_parser().parse_known_args((sys.argv[1:] if argv is None else argv) or ["--help"])
    if unknown:
        options = [text.partition("=")[0] for text in unknown if text.startswith("-")]
        near = [found for name in options for found in get_close_matches(name, args.parser._option_string_actions, n=1)]
        advice = f"; did you mean {' '.join(near)}?" if near else ""
        args.parser.error(f"unrecognized arguments: {' '.join(unknown)}{advice}")
    if fault := getattr(args.module, "find_fault", lambda args: None)(args):
        args.parser.error(fault)
    try:
        _run(args)
    except BrokenPipeError:
        # The reader of the output has closed it (`vaswani translate ... | head`). Buffered text must not be flushed
        # into the closed pipe at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except SystemExit:
        raise
    except BaseException as error:
        if args.debug and not isinstance(error, Interrupted):
            raise
        message, status = _explain(error, args)
        print(f"vaswani {args.command}: {' '.join(message.split())}", file=sys.stderr)
        return status
    return 0


def _prepare_streams() -> None:
    """Let no file of a command take the descriptor of a closed standard stream, whose use becomes an error."""
    for name, mode in (("stdin", "w"), ("stdout", "r"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - open until the process ends
    if sys.stderr is sys.__stderr__:
        file = io.BufferedWriter(Messages(sys.stderr.fileno(), "w", closefd=False))
        sys.stderr = io.TextIOWrapper(file, sys.stderr.encoding, sys.stderr.errors, line_buffering=True)


def _run(args: argparse.Namespace) -> None:
    tune_memory()
    warnings.formatwarning = lambda message, *_, **__: f"vaswani {args.command}: {message}\n"
    # Imported late: this takes seconds, and help and usage errors come before.
    import_module(".registration", __package__)
    import_module("transformers").utils.logging.disable_progress_bar()  # of loading and saving weights
    args.module.run(args)
    sys.stdout.flush()  # here a full disk and a closed pipe are errors of the command, at exit they are not


def _explain(error: BaseException, args: argparse.Namespace) -> tuple[str, int]:
    """Return the line about an error, and the exit status."""
    if isinstance(error, Interrupted):
        return str(error), EXIT_CODE
    if isinstance(error, KeyboardInterrupt):
        return "stopped by Ctrl+C", 128 + signal.SIGINT  # as a shell reports it
    names = [getattr(stream, "name", "") for stream in (sys.stdin, sys.stdout)]
    if isinstance(error, io.UnsupportedOperation) and os.devnull in names:  # by `_prepare_streams`
        return f"standard input or output is closed, and {args.command} uses it: open it, or name a file.", 1
    kind, reason = type(error).__name__, str(error)
    if kind in ("OutOfMemoryError", "MemoryError") or "DefaultCPUAllocator" in reason:  # of CUDA, Python and PyTorch
        advice = "--tokens_per_batch (of training: larger --accumulation_steps), or shorter sentences"
        return f"out of memory ({(reason or kind).splitlines()[0]}): give a smaller {advice}.", 1
    if isinstance(error, ModuleNotFoundError) and (extra := EXTRAS.get(str(error.name).partition(".")[0])):
        return f'{reason}: pip install "vaswani-transformer[{extra}]"', 1
    if isinstance(error, USER_ERRORS) and reason:
        return reason, 1
    return f"{kind}: {reason} (vaswani --debug {args.command} ... shows where)", 1
