"""Train the Transformer of "Attention Is All You Need" on text, and translate with it.

vaswani prepare --train train.en train.de --dev dev.en dev.de --output data
vaswani train --data data --output runs/base
vaswani translate --model runs/base --input test.en --output test.hyp.de
"""

import argparse
import contextlib
import io
import os
import re
import sys
import warnings
from collections.abc import Collection, Sequence
from difflib import get_close_matches
from importlib import import_module, reload
from importlib.util import find_spec
from pathlib import Path

from . import __version__
from .commands import COMMANDS
from .commands.arguments import check_files
from .memory import tune_memory
from .training.interruption import EXIT_CODE, Interrupted

# The messages of these errors are written for users. Other errors are shown with the name of their class.
USER_ERRORS = (ValueError, OSError, FloatingPointError, ImportError, Interrupted)
STATUSES = {Interrupted: EXIT_CODE, KeyboardInterrupt: 130}  # 130 is what a shell reports. Other errors have status 1.
# Package -> the extra of vaswani-transformer that installs it.
EXTRAS = {"matplotlib": "plots", "ctranslate2": "export", "tensorboard": "tensorboard"}
SHARED = ("train", "translate")  # commands whose work the processes of a launcher share
PACKAGE = Path(__file__).parent
# The fields of recipes are found in the source text, because importing these files takes seconds. File -> prefix.
FIELDS_OF_RECIPES = {"training/recipes.py": "", "model/configuration_vaswani.py": "model."}


class Messages(io.FileIO):
    """Standard error. If a message cannot be written, as on a full disk, it is lost and the work continues."""

    def write(self, data: bytes) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:  # The reader has closed the pipe. `main` then ends the command.
            raise
        except OSError:
            return len(data)


def build_parser() -> argparse.ArgumentParser:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="vaswani", description=__doc__, formatter_class=formatter)
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    parser.add_argument("--debug", action="store_true", help="show where in the code an error arose")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for name, module in COMMANDS.items():
        text = module.__doc__ or ""  # `python -OO` removes docstrings.
        command = commands.add_parser(
            name, help=text.partition("\n")[0], description=text, formatter_class=formatter, allow_abbrev=False
        )
        module.add_arguments(command)
        command.add_argument(
            "--import", type=Path, metavar="FILE", help="first run this Python file of yours: a variation of the model"
        )
        command.set_defaults(module=module, parser=command)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command in `argv`, and return its exit status. Without a command, list the commands.

    For an error, print one line on standard error. With --debug, raise the error instead.
    """
    _prepare_streams()
    parser = build_parser()
    words = (sys.argv[1:] if argv is None else argv) or ["--help"]
    name = next((word for word in words if not word.startswith("-")), "")
    if name not in COMMANDS and (near := get_close_matches(name, COMMANDS, n=1)):
        parser.error(f"there is no command {name!r}; did you mean {near[0]!r}?")
    args, unknown = parser.parse_known_args(words)
    if unknown:
        advice = _advise(unknown, args.parser._option_string_actions)
        args.parser.error(
            f"unrecognized arguments: {' '.join(unknown)}{advice} (options of other toolkits: "
            f"{PACKAGE.name}/translation/you_know.md)"
        )
    if fault := getattr(args.module, "find_fault", lambda args: None)(args):
        args.parser.error(fault)
    if os.environ.get("RANK", "0") != "0" and args.command not in SHARED:  # a further process of a launcher
        print(f"vaswani {args.command}: only the first process works, because this work is not shared", file=sys.stderr)
        return 0
    try:
        tune_memory()
        warnings.formatwarning = lambda message, *_, **__: f"vaswani {args.command}: {message}\n"
        check_files(args)
        # These imports take seconds. They come late, so that help, usage errors and missing files appear at once.
        import_module(".registration", __package__)
        # Otherwise transformers shows progress bars while it loads and saves weights.
        import_module("transformers").utils.logging.disable_progress_bar()
        if file := getattr(args, "import"):
            _import_file(file)
        args.module.run(args)
        sys.stdout.flush()  # A full disk or a closed pipe can be explained here, but not at exit.
    except BrokenPipeError:
        # The reader of the output has closed the pipe (`vaswani translate ... | head`). At exit, Python must not flush
        # buffered text into it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (Exception, KeyboardInterrupt) as error:
        if args.debug and not isinstance(error, Interrupted):
            raise
        print(f"vaswani {args.command}: {' '.join(_explain(error, args).split())}", file=sys.stderr)
        return STATUSES.get(type(error), 1)
    return 0


def _import_file(path: Path) -> None:
    """Import the user's Python file at `path`. What it prints goes to standard error, apart from the command's output.

    Raises:
        ValueError: if there is no such file, or if its name is also that of another module.
    """
    path = path.resolve()
    sys.path.append(str(path.parent))
    found = find_spec(path.stem)
    if found is None or Path(str(found.origin)).resolve() != path:
        raise ValueError(f"--import needs a .py file whose name is that of no other module: check or rename {path}.")
    # For the command line, __init__.py has left out the public names. The file may import them.
    sys.modules.pop("vaswani_cli", None)
    reload(sys.modules[__package__])
    with contextlib.redirect_stdout(sys.stderr):
        import_module(path.stem)


def _advise(unknown: Sequence[str], known: Collection[str]) -> str:
    """Return advice about the words that a command with the options `known` does not know; "" if there is none."""
    option, _, value = unknown[0].partition("=")
    if not option.startswith("-"):
        return "; text is read from --input FILE, or from standard input" if "--input" in known else ""
    name = option.lstrip("-").replace("-", "_")
    for file, prefix in FIELDS_OF_RECIPES.items() if "--set" in known else ():
        if re.search(f"^    {re.escape(name)}: (?!dict)", (PACKAGE / file).read_text("utf-8"), re.MULTILINE):
            return f"; did you mean --set {prefix}{name}={value or ''.join(unknown[1:2])}?"
    near = get_close_matches(option, known, n=1, cutoff=0.63)
    return f"; did you mean {near[0]}?" if near else ""


def _prepare_streams() -> None:
    """Replace closed standard streams. Otherwise a file that the command opens would get the descriptor of a stream.

    A replaced standard input is open for writing only, and a replaced standard output for reading only. So their use
    raises an error, which `_explain` explains. An open standard error becomes `Messages`.
    """
    for name, mode in (("stdin", "w"), ("stdout", "r"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - open until the process ends
    if sys.stderr is sys.__stderr__:
        file = io.BufferedWriter(Messages(sys.stderr.fileno(), "w", closefd=False))
        sys.stderr = io.TextIOWrapper(file, sys.stderr.encoding, sys.stderr.errors, line_buffering=True)


def _explain(error: BaseException, args: argparse.Namespace) -> str:
    """Return the message for an error."""
    if isinstance(error, KeyboardInterrupt):
        return "stopped by Ctrl+C"
    names = [getattr(stream, "name", "") for stream in (sys.stdin, sys.stdout)]
    if isinstance(error, io.UnsupportedOperation) and os.devnull in names:  # `_prepare_streams` opened it.
        return f"standard input or output is closed, but {args.command} uses it: open it, or name a file."
    kind, reason = type(error).__name__, str(error)
    if kind in ("OutOfMemoryError", "MemoryError") or "DefaultCPUAllocator" in reason:  # CUDA, Python and PyTorch
        advice = "give a smaller --tokens_per_batch (in training a larger --accumulation_steps), or shorter sentences"
        return f"out of memory ({(reason or kind).splitlines()[0]}): {advice}."
    if isinstance(error, ModuleNotFoundError) and (extra := EXTRAS.get(str(error.name).partition(".")[0])):
        return f'{reason}: pip install -c constraints.txt -e ".[{extra}]" in the folder of the repository'
    if type(error).__module__.startswith("http"):  # httpx, which huggingface_hub uses
        lost = "the Hugging Face Hub does not answer, or the connection was lost"
        return f"{lost} ({kind}: {reason}): check the network, and repeat the command."
    if isinstance(error, USER_ERRORS) and reason:
        return reason
    return f"{kind}: {reason} (vaswani --debug {args.command} ... shows where in the code)"
