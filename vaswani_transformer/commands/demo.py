"""`vaswani demo`."""

import argparse
from pathlib import Path

from .. import loading
from ..hub.demo import HOST, PORT, Demo, build_page, import_gradio, serve
from .arguments import add_command, positive_int


def add(commands) -> None:
    command = add_command(commands, "demo", run)
    command.add_argument("--model", required=True, help="model folder, run folder or Hub id")
    text = f"address to listen at: {HOST}, this machine alone, if not given; 0.0.0.0 lets the whole network in"
    command.add_argument("--host", default=HOST, help=text)
    command.add_argument("--port", type=positive_int, default=PORT, help=f"{PORT} if not given")


def run(args: argparse.Namespace) -> None:
    """Serve a page to try a model: its translations of a sentence, their scores, and what each word looked at.

    vaswani demo --model runs/base

    Open the address that is printed in a browser of this machine; Ctrl+C ends it. Nothing is fetched from elsewhere.
    """
    import_gradio()  # a missing one shows before the model is loaded
    model, tokenizer = loading.load_translator(args.model)
    languages = loading.find_languages(getattr(model.config, "custom_pipelines", None))
    page = build_page(Demo(model, tokenizer), name=Path(args.model).resolve().name, languages=languages)
    serve(page, host=args.host, port=args.port)
