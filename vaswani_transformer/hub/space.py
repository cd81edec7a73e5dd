"""The files of a Space of the Hugging Face Hub with the page of `vaswani demo` for a model there.

The Space contains the code of the page and of the model. It reads the weights from the model's repository at one
commit, and no code: nothing has to be trusted.
"""

import json
import re
import shutil
import sys
from importlib.metadata import requires, version
from pathlib import Path

from huggingface_hub import SpaceCardData

GRADIO_VERSION = "6.31.0"  # as in constraints.txt; the Hub installs it
APP_FILE = "app.py"
SETTINGS_FILE = "settings.json"
REQUIREMENTS_FILE = "requirements.txt"
DISTRIBUTION = "vaswani-transformer"
RELEASE = re.compile(r"[\d.]+(post\d+)?")
CARD = """\
---
{metadata}
---

# Translate with {model_id}

A page to try [{model_id}](https://huggingface.co/{model_id}): the best translations of a sentence with their
scores, and what each head of each layer looked at for each word. It is the page of `vaswani demo`.
"""
PACKAGE = Path(__file__).parents[1]
PAGE_FILES = (
    "__init__.py",
    "attention/__init__.py",
    "attention/kinds.py",
    "attention/maps.py",
    "attention/page.html",
    "attention/page.py",
    "hub/__init__.py",
    "hub/demo.py",
    "model/__init__.py",
)


def write_space(
    folder: Path, *, model_id: str, revision: str, languages: tuple[str, str] | None, needs_sentencepiece: bool
) -> None:
    """Write all files of the Space to a new `folder`.

    Args:
        model_id: OWNER/NAME of the model on the Hub.
        revision: the commit of it that the Space shows.
        languages: of source and target, if known.
        needs_sentencepiece: True if the tokenizer is MarianMT's.
    """
    package = folder / PACKAGE.name
    for path in [*(PACKAGE / name for name in PAGE_FILES), *(PACKAGE / "model").glob("*_vaswani.py")]:
        copy = package / path.relative_to(PACKAGE)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    shutil.copyfile(PACKAGE / "hub" / "space_app.py", folder / APP_FILE)
    settings = {"model": model_id, "revision": revision, "languages": languages}
    (folder / SETTINGS_FILE).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    names = ["torch", "transformers", "numpy", *(["sentencepiece"] if needs_sentencepiece else [])]
    requirements = "".join(f"{_require(name)}\n" for name in names)
    (folder / REQUIREMENTS_FILE).write_text(requirements, encoding="utf-8")
    metadata = SpaceCardData(
        title=f"Translate with {model_id.partition('/')[2]}",
        sdk="gradio",
        sdk_version=GRADIO_VERSION,
        python_version=f"{sys.version_info.major}.{sys.version_info.minor}",
        app_file=APP_FILE,
        license="apache-2.0",
        models=[model_id],
    )
    card = CARD.format(metadata=metadata.to_yaml(), model_id=model_id)
    (folder / "README.md").write_text(card, encoding="utf-8")


def _require(name: str) -> str:
    """Return a line of requirements: the installed version, if PyPI may have it."""
    public = version(name).partition("+")[0]  # after + stands the device that it was built for
    if RELEASE.fullmatch(public):
        return f"{name}=={public}"
    # A nightly build or one from a clone: any release that the package itself takes.
    wanted = (line.partition(";")[0].strip() for line in requires(DISTRIBUTION) or ())
    return next((line for line in wanted if re.match(rf"{name}\b", line)), name)
