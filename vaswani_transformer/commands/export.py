"""`vaswani export`."""

import argparse
from pathlib import Path

from .. import evaluation
from .arguments import add_command, positive_int


def add(commands) -> None:
    command = add_command(commands, "export", run)
    command.add_argument("--model", required=True, help="model folder, run folder or Hub id")
    command.add_argument("--format", choices=("ctranslate2", "onnx"), required=True)
    command.add_argument("--output", type=Path, required=True, help="new or empty folder")
    ctranslate2 = command.add_argument_group("CTranslate2")
    ctranslate2.add_argument("--quantization", help="of the weights: float32 (default), int8, int8_float16, ...")
    ctranslate2.add_argument(
        "--max_positions", type=positive_int, help="tokens of the longest sentence; 2048 if not given"
    )


def run(args: argparse.Namespace) -> None:
    """Write a model for CTranslate2 or ONNX, with its tokenizer.

    vaswani export --model runs/base --format ctranslate2 --quantization int8 --output exports/base
    vaswani export --model runs/base --format onnx --output exports/base_onnx

    Greedy translations are those of `vaswani translate --num_beams 1`. CTranslate2's beam search has another length
    penalty and another end than the paper's; what is printed says which, and how to rescore its n-best lists.
    """
    names = ("quantization", "max_positions")
    options = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    if args.format == "onnx" and options:
        raise ValueError(f"--{' and --'.join(options)} is for --format ctranslate2: ONNX gets float32 and any length.")
    if args.output.is_dir() and any(args.output.iterdir()):
        raise ValueError(f"{args.output} is not empty: files of another model may not be mixed in. Name a new folder.")
    try:
        # Packages that no other command needs.
        if args.format == "ctranslate2":
            from ..export import ctranslate2_converter as exporter
        else:
            from ..export import onnx_export as exporter
    except ModuleNotFoundError as error:
        raise ValueError(
            f"--format {args.format} needs the package {error.name.split('.')[0]}, which is not installed: "
            f'pip install "vaswani-transformer[export]"'
        ) from error
    model, tokenizer = evaluation.load_translator(args.model)
    exporter.export_model(model, tokenizer, args.output, **options)
    print(exporter.HOW_TO_USE.format(folder=args.output))
