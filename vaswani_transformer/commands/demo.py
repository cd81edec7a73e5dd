import argparse
from pathlib import Path

from .. import loading
from ..hub.demo import Demo, build_page, import_gradio, serve


def run(args: argparse.Namespace) -> None:
    import_gradio()  # a missing one shows before the model is loaded
    model, tokenizer = loading.load_translator(args.model)
    languages = loading.find_languages(getattr(model.config, "custom_pipelines", None))
    page = build_page(Demo(model, tokenizer), name=Path(args.model).resolve().name, languages=languages)
    serve(page, host=args.host, port=args.port)
