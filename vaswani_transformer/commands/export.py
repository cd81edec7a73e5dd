import argparse

from .. import loading
from .arguments import check_new_folder


def run(args: argparse.Namespace) -> None:
    names = ("quantization", "max_positions")
    options = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    check_new_folder(args.output)
    if args.format == "ctranslate2":  # its packages are needed by no other command
        from ..export import ctranslate2_converter as exporter
    else:
        from ..export import onnx_export as exporter
    model, tokenizer = loading.load_translator(args.model)
    exporter.export_model(model, tokenizer, args.output, **options)
    settings = model.generation_config.to_diff_dict().items()
    others = ("_id", "_version", "_heads")
    search = ", ".join(f"{name}={value!r}" for name, value in settings if not name.endswith(others))
    print(exporter.HOW_TO_USE.format(folder=args.output, search=search))
