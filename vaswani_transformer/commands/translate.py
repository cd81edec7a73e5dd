import argparse
import contextlib
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from ..attention.alignment import align, format_links
from ..data.corpus import read_parallel_files
from ..data.lines import read_lines
from ..loading import Loaded
from ..translation.files import find_processes, read_file_windows, read_windows, translate_file, translate_stream
from ..translation.translator import Translator, format_lines
from .arguments import check_output, load_members, open_output, search_options


def run(args: argparse.Namespace) -> None:
    processes = find_processes()
    is_resumable = args.input is not None and args.input.is_file() and _is_replaceable(args.output)
    if processes.num_processes > 1 and not is_resumable:
        raise ValueError(
            f"{processes.num_processes} processes can share a file, not a pipe: give --input and --output files."
        )
    check_output(args.output, inputs=[])
    if args.alignments is not None:
        check_output(args.alignments, inputs=[args.input, args.output])
        if not is_resumable or args.alignments == args.output or args.nbest or args.scores:
            raise ValueError("--alignments needs --input and --output, three files, without --nbest and --scores.")
        if args.split_sentences:
            raise ValueError("--alignments are of single sentences: split them into lines, without --split_sentences.")
    if args.input is not None:
        read_lines(args.input)  # a missing file shows before the model is loaded
    members = load_members(args)
    settings = _describe(args, members)
    translator = Translator(
        members[0].model,
        members[0].tokenizer,
        tokens_per_batch=args.tokens_per_batch,
        num_hypotheses=1 if args.nbest is None else args.nbest,
        with_scores=args.scores,
        **search_options(args, members),
    )
    aligner = None if args.alignments is None else members[0]
    del members  # engines have taken the place of their models
    is_numbered = args.nbest is not None
    to_lines = partial(format_lines, is_numbered=is_numbered, is_scored=args.scores)
    if is_resumable:
        settings["tokens_per_batch"] = translator.tokens_per_batch
        translate_file(translator, args.input, args.output, to_lines=to_lines, settings=settings, processes=processes)
    else:
        with _open_windows(args.input) as windows, open_output(args.output) as output:
            translate_stream(translator, windows, output, to_lines=to_lines)
    processes.destroy_process_group()
    if aligner is not None and processes.is_main_process:
        with open_output(args.alignments) as file:
            for links in align(aligner.model, aligner.tokenizer, read_parallel_files(args.input, args.output)):
                file.write(f"{format_links(links)}\n")
    for warning in translator.find_warnings():
        print(f"vaswani translate: {warning}", file=sys.stderr)


def _describe(args: argparse.Namespace, members: Sequence[Loaded]) -> dict[str, object]:
    """Describe all that decides the output except the input: models by content, not by path."""
    elsewhere = ("command", "debug", "input", "output", "alignments")
    settings = {name: value for name, value in vars(args).items() if name not in elsewhere}
    settings["model"], *settings["ensemble"] = [member.fingerprint for member in members]
    return settings


def _is_replaceable(path: Path | None) -> bool:
    """Return True if a new file may replace `path`: not standard output, a pipe or a device."""
    return path is not None and (path.is_file() or not path.exists())


@contextlib.contextmanager
def _open_windows(path: Path | None) -> Iterator[Iterator[list[str]]]:
    """Yield the lines of a file, of a pipe, or of standard input, a window at a time."""
    if path is None:
        yield read_windows(sys.stdin.buffer, name="standard input")
    elif path.is_file():  # it may be compressed
        yield read_file_windows(path)
    else:
        with path.open("rb") as file:
            yield read_windows(file, name=str(path))
