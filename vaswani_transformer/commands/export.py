"""Write a model and its tokenizer in the format of CTranslate2 or ONNX.

vaswani export --model runs/base --format ctranslate2 --quantization int8 --output exports/base
vaswani export --model runs/base --format onnx --output exports/base_onnx

vaswani_transformer/export/README.md shows how to use both formats, and how the beam search of CTranslate2 differs from
the beam search of this package.
"""

import argparse

from ..bounds import Number
from .arguments import add_model, new_folder, take_given


def add_arguments(command: argparse.ArgumentParser) -> None:
    add_model(command)
    command.add_argument("--format", choices=("ctranslate2", "onnx"), required=True)
    command.add_argument("--output", type=new_folder, required=True, help="new or empty folder")
    ctranslate2 = command.add_argument_group("CTranslate2")
    ctranslate2.add_argument(
        "--quantization", help="type of stored weights: float32 (default), int8, int8_float16, ..."
    )
    ctranslate2.add_argument(
        "--max_positions", type=Number(1, 65_536), help="limit of tokens in a sentence; default: 2048"
    )


def find_fault(args: argparse.Namespace) -> str | None:
    given = take_given(args, "quantization", "max_positions")
    return "--quantization and --max_positions need --format ctranslate2." if given and args.format == "onnx" else None


def run(args: argparse.Namespace) -> None:
    from ..files import write_folder
    from ..loading import load_translator

    if args.format == "ctranslate2":  # Only this format needs the package ctranslate2.
        from ..export import ctranslate2_converter as exporter
    else:
        from ..export import onnx_export as exporter
    model, tokenizer = load_translator(args.model)
    with write_folder(args.output) as output:
        exporter.export_model(model, tokenizer, output, **take_given(args, "quantization", "max_positions"))
    settings = model.generation_config.to_diff_dict().items()
    search = ", ".join(
        f"{name}={value!r}" for name, value in settings if not name.endswith(("_id", "_version", "_heads"))
    )
    print(exporter.HOW_TO_USE.format(folder=args.output, search=search))
