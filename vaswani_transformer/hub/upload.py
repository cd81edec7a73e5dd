"""Upload a trained model to the Hugging Face Hub: model, tokenizer, code and card, and nothing else.

    upload_model("runs/base", "me/base", private=True)

No file is copied from the folder: model and tokenizer are loaded, saved to an empty folder, and uploaded from there.
Logs, checkpoints, the state of training and other files of a run folder stay behind.
"""

import tempfile
from pathlib import Path

from huggingface_hub import HfApi, get_token

from ..loading import load
from ..model.pipeline_vaswani import custom_pipelines
from ..runs import CARD_FILE, CHECKPOINTS_FOLDER, MODEL_FOLDER, RECIPE_FILE
from ..translation.example import keep_example
from .card import MODEL_ID, build_card


def upload_model(model: str | Path, repo_id: str, *, private: bool = False) -> tuple[str, list[str]]:
    """Upload model, tokenizer, code and card in one commit; make the repository if it is missing.

    Args:
        model: run folder or model folder. Its README.md is the card; for a run without one, `build_card` makes it.
        repo_id: OWNER/NAME on the Hub.
        private: a new repository is seen by its owners only.

    Returns:
        address of the commit, and the names of the files.

    Raises:
        ValueError: without a login or a card, if `private` is given and the repository is public, or if the Hub refuses
            the metadata of the card; nothing has been uploaded then.
        OSError: if the Hub refuses.
    """
    if get_token() is None:
        raise ValueError("uploading needs a login: run `hf auth login`, or set HF_TOKEN to a token that may write.")
    with tempfile.TemporaryDirectory() as folder:
        write_upload(model, Path(folder), repo_id=repo_id)
        names = sorted(file.name for file in Path(folder).iterdir())
        api = HfApi()
        api.create_repo(repo_id, private=private or None, exist_ok=True)
        if private and not api.model_info(repo_id).private:
            raise ValueError(
                f"{repo_id} exists already and is public: nothing was uploaded. Make it private on the Hub, choose "
                f"another name, or leave --private out."
            )
        message = "Upload model, tokenizer, code and card"
        commit = api.upload_folder(repo_id=repo_id, folder_path=folder, commit_message=message)
    return str(commit.commit_url), names


def write_upload(model: str | Path, folder: Path, *, repo_id: str) -> None:
    """Write model, tokenizer, code and card to the empty `folder`.

    Raises:
        ValueError: as `upload_model`.
    """
    found, translator, tokenizer, _ = load(model)
    card = _find_card(found).replace(MODEL_ID, repo_id)
    if tasks := vars(translator.config).get("custom_pipelines"):
        translator.config.custom_pipelines = custom_pipelines(*tasks)  # the code that it names may be foreign
    translator.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    keep_example(folder)
    (folder / CARD_FILE).write_text(card, encoding="utf-8")


def _find_card(folder: Path) -> str:
    """Return the card beside the weights in `folder`, or build it from the run that they are of."""
    if (folder / CARD_FILE).exists():
        return (folder / CARD_FILE).read_text(encoding="utf-8")
    for run in folder.parents[:2]:
        if (run / RECIPE_FILE).exists() and folder.relative_to(run).parts[0] in (MODEL_FOLDER, CHECKPOINTS_FOLDER):
            return build_card(run, folder)
    raise ValueError(
        f"{folder} has no card: write {CARD_FILE} beside its config.json, by hand or with `vaswani card --run ...`."
    )
