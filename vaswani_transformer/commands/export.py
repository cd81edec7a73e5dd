"""Write a model and its tokenizer in the format of CTranslate2.

vaswani export --model runs/base --format ctranslate2 --quantization int8 --output exports/base

vaswani_transformer/export/README.md shows how to use it, and how the beam search of CTranslate2 differs from the beam
search of this package.
"""

import argparse

from ..bounds import Number
from .arguments import add_model, new_folder, take_given


def add_arguments(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add_model(command)
    add("--format", choices=("ctranslate2",), default="ctranslate2")
    add("--output", type=new_folder, required=True, help="new or empty folder")
    add("--quantization", help="type of stored weights: float32 (default), int8, int8_float16, ...")
    add("--max_positions", type=Number(1, 65_536), help="limit of tokens in a sentence; default: 2048")


def run(args: argparse.Namespace) -> None:
    from ..export.ctranslate2_converter import HOW_TO_USE, export_model
    from ..files import write_folder
    from ..loading import load_translator

    model, tokenizer = load_translator(args.model)
    with write_folder(args.output) as output:
        export_model(model, tokenizer, output, **take_given(args, "quantization", "max_positions"))
    settings = model.generation_config.to_diff_dict().items()
    search = ", ".join(
        f"{name}={value!r}" for name, value in settings if not name.endswith(("_id", "_version", "_heads"))
    )
    print(HOW_TO_USE.format(folder=args.output, search=search))
