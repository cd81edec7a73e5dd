import argparse
from pathlib import Path

from .. import loading
from ..hub.demo import Demo, build_page, import_gradio, serve


def run(args: argparse.Namespace) -> None:
    name = _bundled_model() if args.model is None else args.model
    import_gradio()  # a missing one shows before the model is loaded
    model, tokenizer = loading.load_translator(name)
    languages = loading.find_languages(vars(model.config).get("custom_pipelines"))
    page = build_page(Demo(model, tokenizer), name=Path(name).resolve().name, languages=languages)
    serve(page, host=args.host, port=args.port)


def _bundled_model() -> Path:
    """Return the folder of the model that comes with the repository.

    Raises:
        FileNotFoundError: if the package was installed without it.
    """
    folder = loading.BUNDLED_MODEL
    if not (folder / "config.json").exists():
        raise FileNotFoundError(
            f"the model that the page shows by default, {folder.name}, comes with a clone of the repository and not "
            f"with the installed package: name a model by --model."
        )
    return folder
