"""The page of a Space: `app.py` there, which the Hub starts; `space` writes the files beside it."""

import json
from pathlib import Path

from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from vaswani_transformer.hub.demo import Demo, build_page, serve

SETTINGS = Path(__file__).with_name("settings.json")


def load_demo(name: str, revision: str) -> Demo:
    """Load the model and its tokenizer from the Hub, with the code that lies beside this file."""
    model = AutoModelForSeq2SeqLM.from_pretrained(name, revision=revision, trust_remote_code=False)
    return Demo(model, AutoTokenizer.from_pretrained(name, revision=revision, trust_remote_code=False))


def main() -> None:
    settings = json.loads(SETTINGS.read_text(encoding="utf-8"))
    demo = load_demo(settings["model"], settings["revision"])
    serve(build_page(demo, name=settings["model"], languages=settings["languages"]))


if __name__ == "__main__":
    main()
