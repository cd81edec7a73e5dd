"""Upload a trained model to the Hugging Face Hub, with its tokenizer, code and card.

    upload_model("runs/base", "me/base", private=True)

Nothing else is uploaded. The model and the tokenizer are loaded, saved to an empty folder, and uploaded from there. So
logs, checkpoints, the state of training and other files of a run folder stay behind.
"""

import tempfile
from pathlib import Path

from huggingface_hub import HfApi, get_token
from huggingface_hub.utils import validate_repo_id
from transformers import GenerationConfig, PreTrainedTokenizerBase

from ..files import read_object
from ..loading import load
from ..model.pipeline_vaswani import custom_pipelines
from ..runs import CARD_FILE, CHECKPOINTS_FOLDER, MODEL_FOLDER, RECIPE_FILE
from ..translation.example import keep_example
from .card import MODEL_ID, build_card

# Known fields of a model's JSON files. They are listed, because the objects that transformers reads from these files
# do not have them.
FIELDS = {
    "config.json": ("auto_map", "custom_pipelines", "task_specific_params"),
    "generation_config.json": ("alignment_heads", "length_penalty_type", "max_length_offset"),
    "tokenizer_config.json": (
        "added_tokens_decoder",
        "extra_special_tokens",
        "is_local",
        "local_files_only",
        "tokenizer_class",
        *PreTrainedTokenizerBase.SPECIAL_TOKENS_ATTRIBUTES,
    ),
}


def upload_model(model: str | Path, repo_id: str, *, private: bool = False) -> tuple[str, list[str]]:
    """Upload a model, its tokenizer, code and card in one commit. Create the repository if it does not exist.

    Args:
        model: a run folder or model folder. Its README.md is the card. If a run has no README.md, `build_card` writes
            the card.
        repo_id: the name OWNER/NAME on the Hub.
        private: True if only the owners of the repository may see it.

    Returns:
        the address of the commit, and the names of the files.

    Raises:
        ValueError: if there is no login, if a model outside a run has no card, if `private` is given and the repository
            is public, if the Hub refuses the metadata of the card, and in the cases of `write_upload`. In all these
            cases no file is uploaded.
        OSError: if the Hub refuses the upload.
    """
    if get_token() is None:
        raise ValueError("uploading needs a login: run `hf auth login`, or set HF_TOKEN to a token that may write.")
    with tempfile.TemporaryDirectory() as folder:
        names = write_upload(model, Path(folder), repo_id=repo_id)
        api = HfApi()
        api.create_repo(repo_id, private=private or None, exist_ok=True)
        if private and not api.model_info(repo_id).private:
            raise ValueError(
                f"{repo_id} exists already and is public: nothing was uploaded. Make it private on the Hub, choose "
                f"another name, or leave --private out."
            )
        commit = api.upload_folder(
            repo_id=repo_id, folder_path=folder, commit_message="Upload model, tokenizer, code and card"
        )
    return str(commit.commit_url), names


def write_upload(model: str | Path, folder: Path, *, repo_id: str) -> list[str]:
    """Write the model, its tokenizer, code and card to the empty `folder`. Return the names of the files.

    Raises:
        ValueError: if `repo_id` is no name for the Hub, if a model outside a run has no card, or if a JSON file of
            settings has a field that neither transformers nor this package knows, because it may be a secret.
    """
    validate_repo_id(repo_id)
    source, network, tokenizer, _ = load(model)
    card = _find_card(source).replace(MODEL_ID, repo_id)
    known = {
        "config.json": type(network.config)().to_dict(),
        "generation_config.json": GenerationConfig().to_dict(),
        "tokenizer_config.json": vars(tokenizer),
    }
    for name, names in known.items():
        fields = read_object(source / name) if (source / name).exists() else ()
        if unknown := [field for field in fields if field not in (*names, *FIELDS[name])]:
            raise ValueError(
                f"{source / name} has fields that neither transformers nor vaswani_transformer knows, and the upload "
                f"would publish them: {', '.join(unknown)}. Remove them."
            )
    config = vars(network.config)
    # Of each task only the name is uploaded: the rest of its entry may name foreign code, or hold a secret.
    tasks = [*(config.get("custom_pipelines") or ()), *(config.pop("task_specific_params", None) or ())]
    network.config.custom_pipelines = custom_pipelines(*tasks)
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    keep_example(folder)
    (folder / CARD_FILE).write_text(card, encoding="utf-8")
    return sorted(file.name for file in folder.iterdir())


def _find_card(folder: Path) -> str:
    """Return the card beside the weights in `folder`. If there is none, build it from the run of these weights."""
    if (folder / CARD_FILE).exists():
        return (folder / CARD_FILE).read_text(encoding="utf-8")
    for run in folder.parents[:2]:
        if (run / RECIPE_FILE).exists() and folder.relative_to(run).parts[0] in (MODEL_FOLDER, CHECKPOINTS_FOLDER):
            return build_card(run, folder)
    raise ValueError(
        f"{folder} has no card: write {CARD_FILE} beside its config.json. `vaswani card` writes the card of a run. A "
        f"Trainer's create_model_card() writes one into its output_dir."
    )
