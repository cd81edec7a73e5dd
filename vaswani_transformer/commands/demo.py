import argparse
from pathlib import Path

import gradio  # noqa: F401 - a missing one shows before the model is loaded

from .. import loading
from ..hub.demo import Demo, build_page, serve


def run(args: argparse.Namespace) -> None:
    name = args.model or loading.BUNDLED_MODEL
    model, tokenizer = loading.load_translator(name)
    languages = loading.find_languages(vars(model.config).get("custom_pipelines"))
    page = build_page(Demo(model, tokenizer), name=Path(name).resolve().name, languages=languages)
    serve(page, host=args.host, port=args.port)
