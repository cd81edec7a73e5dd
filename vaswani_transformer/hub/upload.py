"""Upload a trained model to the Hugging Face Hub: model, tokenizer, code and card, and nothing else.

    upload_model("runs/base", "me/base", private=True)
    upload_space("me/base")

No file is copied from the folder. The model is loaded and saved again, so that only the output of this package is
uploaded: weights without foreign metadata, the known keys of config.json, the code of the model. Logs, checkpoints, the
state of training and other files of a run folder stay behind.
"""

import json
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path

from huggingface_hub import CommitOperationAdd, HfApi, RepoUrl, get_token
from huggingface_hub.utils import httpx, validate_repo_id
from transformers import GenerationConfig, PreTrainedTokenizerBase

from ..loading import CARD_FILE, find_languages, load_translator
from ..model.generation_options_vaswani import build_generation_config
from ..model.pipeline_vaswani import MODEL_FOLDER, TRANSLATION_TASK, custom_pipelines
from ..training.run_folder import RECIPE_FILE
from .card import MODEL_ID, build_card, check_card
from .space import SETTINGS_FILE, write_space

UPLOADED = (
    CARD_FILE,
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "*_vaswani.py",
    "source.spm",  # this and the next two: the tokenizer of MarianMT
    "target.spm",
    "vocab.json",
)
# Allowed keys of config.json besides the fields of `VaswaniConfig`, and of tokenizer_config.json.
CONFIG_KEYS = {"architectures", "auto_map", "custom_pipelines", "dtype", "model_type", "transformers_version"}
TOKENIZER_KEYS = {
    *PreTrainedTokenizerBase.SPECIAL_TOKENS_ATTRIBUTES,
    *("added_tokens_decoder", "backend", "clean_up_tokenization_spaces", "extra_special_tokens", "model_input_names"),
    *("model_max_length", "padding_side", "split_special_tokens", "tokenizer_class", "truncation_side"),
    *("separate_vocabs", "source_lang", "sp_model_kwargs", "target_lang"),  # of MarianMT
}
# Files that hold text of the user, searched for secrets: the code is the package's, and tokenizer.json is written again
# from the vocabulary.
SCANNED = (CARD_FILE, "config.json", "generation_config.json", "tokenizer_config.json")
OF_A_NEW_SPACE = {"README.md", ".gitattributes"}
SECRETS = re.compile(
    r"\b(?:hf_|gh[pousr]_|github_pat_|glpat-|npm_|pypi-|[srp]k[-_]|AIza|xox[a-z]-)[\w-]{16,}|\bA[KS]IA[A-Z0-9]{16}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY"
    r"|\b[0-9a-f]{40}\b"  # such as a key of Weights & Biases
    r"|\b[a-z][a-z0-9+.-]*://[^\s/@:]+:[^\s/@]+@"  # user:password
    r"|(?i:password|passwd|secret|api[ _-]?key|access[ _-]?key)[\w-]*[\"'`]*\s*[:=]\s*[\"'`]*(?=\S*\d)[^\s\"'`]{6,}"
)
# A commit has the form of a key.
COMMITS = re.compile(r"(?:\b(?:commit|revision|tree|blob|resolve)\W{1,5}|@)[0-9a-f]{40}\b", re.IGNORECASE)
LOCAL_PATHS = re.compile(r"(?<![\w/.<>~)\]-])(?:~?/(?:[\w.@+-]+/)+[\w.@+-]*|[A-Za-z]:\\[\w\\. -]+)|\bfile://\S+")


def upload_model(model: str | Path, repo_id: str, *, private: bool = False) -> tuple[str, list[str]]:
    """Upload model, tokenizer, code and card in one commit; makes the repository if it is missing.

    Args:
        model: run folder or model folder. Its README.md is the card; for a run without one, `build_card` makes it.
        repo_id: OWNER/NAME on the Hub.
        private: a new repository is seen by its owners only.

    Returns:
        address of the commit, and the names of the files.

    Raises:
        ValueError: without a login or a card, if a file holds a secret or a local path, or if `private` is asked of a
            public repository; nothing has been uploaded then.
        OSError: if the Hub cannot be reached, or refuses.
    """
    _check_access(repo_id)
    with tempfile.TemporaryDirectory() as temporary, _reaching_hub() as api:
        folder = Path(temporary)
        write_upload(model, folder, repo_id=repo_id)
        repository = api.create_repo(repo_id, private=private or None, exist_ok=True)
        if private and not api.model_info(repository.repo_id).private:
            raise ValueError(
                f"{repo_id} exists already and is public: nothing was uploaded. Make it private on the Hub, choose "
                f"another name, or leave --private out."
            )
        return _commit(api, repository, folder, "Upload model, tokenizer, code and card")


def upload_space(repo_id: str) -> tuple[str, list[str]]:
    """Upload a Space with a page to try a model of the same name on the Hub; makes it if it is missing.

    It shows the model as it is now. The Space of a private model is private, and reads it by a token among its secrets.

    Args:
        repo_id: OWNER/NAME of the model.

    Returns:
        address of the commit, and the names of the files.

    Raises:
        ValueError: without a login, if a file holds a secret or a local path, if the Space exists and shows something
            else, or if it is public and the model private; no Space has been uploaded then.
        OSError: if the Hub cannot be reached, or refuses.
    """
    _check_access(repo_id)
    with tempfile.TemporaryDirectory() as temporary, _reaching_hub() as api:
        space, downloads = Path(temporary, "space"), Path(temporary, "model")
        model = api.model_info(repo_id)
        config = api.hf_hub_download(repo_id, "config.json", revision=model.sha, local_dir=downloads)
        write_space(
            space,
            model_id=repo_id,
            revision=str(model.sha),
            languages=find_languages(json.loads(Path(config).read_text(encoding="utf-8")).get("custom_pipelines")),
            needs_sentencepiece="source.spm" in {file.rfilename for file in model.siblings or []},
        )
        _check_texts(space, _names(space), "the Space")
        private = model.private or None
        repository = api.create_repo(repo_id, repo_type="space", space_sdk="gradio", private=private, exist_ok=True)
        there = api.space_info(repository.repo_id)
        names = {file.rfilename for file in there.siblings or []}
        if names - OF_A_NEW_SPACE and SETTINGS_FILE not in names:
            raise ValueError(
                f"the Space {repo_id} exists already and shows something else: no Space was uploaded. Rename it on the "
                f"Hub, or push the model under another name."
            )
        if private and not there.private:
            raise ValueError(
                f"the Space {repo_id} exists already and is public, but the model is private: no Space was uploaded. "
                f"Make it private on the Hub, or the model public."
            )
        return _commit(api, repository, space, f"Show {repo_id} at {model.sha}")


def _check_access(repo_id: str) -> None:
    """Refuse an upload that cannot succeed, before any request."""
    validate_repo_id(repo_id)
    if "/" not in repo_id:
        raise ValueError(f"a repository of the Hub is OWNER/NAME, got {repo_id!r}: put your user name before it.")
    if get_token() is None:
        raise ValueError("uploading needs a login: run `hf auth login`, or set HF_TOKEN to a token that may write.")


@contextmanager
def _reaching_hub() -> Iterator[HfApi]:
    try:
        yield HfApi()
    except httpx.HTTPError as error:
        if isinstance(error, OSError):  # the Hub's own answer
            raise
        raise OSError(f"the Hub cannot be reached: {error}. The upload did not end; run the command again.") from error


def _names(folder: Path) -> list[str]:
    """Return the files of `folder` as a repository of the Hub names them."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def _commit(api: HfApi, repository: RepoUrl, folder: Path, message: str) -> tuple[str, list[str]]:
    """Upload all of `folder` in one commit; return its address and the names of the files."""
    names = _names(folder)
    commit = api.create_commit(
        repository.repo_id,
        [CommitOperationAdd(path_in_repo=name, path_or_fileobj=folder / name) for name in names],
        commit_message=message,
        repo_type=repository.repo_type,
    )
    return str(commit.commit_url), names


def write_upload(model: str | Path, folder: Path, *, repo_id: str) -> None:
    """Write the files to upload of `model` to the empty `folder`, and check them.

    Raises:
        ValueError: as `upload_model`.
    """
    card = _find_card(Path(model)).replace(MODEL_ID, repo_id)
    check_card(card)
    translator, tokenizer = load_translator(model)
    # Only the names of its tasks are kept: the code that a config names may be foreign.
    tasks = vars(translator.config).get("custom_pipelines") or {}
    translator.config.custom_pipelines = custom_pipelines(*filter(TRANSLATION_TASK.fullmatch, tasks))
    translator.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / CARD_FILE).write_text(card, encoding="utf-8")
    config_keys = translator.config.__dataclass_fields__.keys() | CONFIG_KEYS
    search_keys = GenerationConfig().to_dict().keys() | build_generation_config(translator.config).to_dict().keys()
    _rewrite(folder / "config.json", lambda key: key in config_keys)
    _rewrite(folder / "generation_config.json", lambda key: key in search_keys)
    _rewrite(folder / "tokenizer_config.json", lambda key: key in TOKENIZER_KEYS)
    for path in folder.iterdir():
        if not any(fnmatch(path.name, pattern) for pattern in UPLOADED):
            raise ValueError(
                f"saving the model wrote {path.name}, which is none of {', '.join(UPLOADED)}: nothing was uploaded. "
                f"Upload it by hand if it belongs to the model."
            )
    _check_texts(folder, SCANNED, model)


def _check_texts(folder: Path, names: Iterable[str], origin: str | Path) -> None:
    """Refuse secrets and local paths in `folder`; `origin` names the source of its text."""
    for name in names:
        if leak := next(find_leaks((folder / name).read_text(encoding="utf-8")), None):
            raise ValueError(
                f"{name} of {origin} would publish {leak!r}, which looks like a secret or a path of this machine: "
                f"nothing of it was uploaded. Remove it there and push again."
            )


def _find_card(model: Path) -> str:
    """Return the card beside the weights, or build it from the run folder."""
    folders = [folder for folder in (model, model / MODEL_FOLDER) if (folder / "config.json").exists()]
    for folder in folders:
        if (folder / CARD_FILE).exists():
            return (folder / CARD_FILE).read_text(encoding="utf-8")
    for run in (model, model.parent):
        if (run / RECIPE_FILE).exists():
            return build_card(run)
    raise ValueError(
        f"{model} has no card: write {CARD_FILE} beside its config.json, by hand or with `vaswani card --run ...`. "
        f"{model} must be a run folder or a model folder."
    )


def _rewrite(path: Path, is_kept: Callable[[str], bool]) -> None:
    """Remove other keys than those kept from the JSON object at `path`."""
    values = json.loads(path.read_text(encoding="utf-8"))
    kept = {key: value for key, value in values.items() if is_kept(key)}
    path.write_text(json.dumps(kept, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def find_leaks(text: str) -> Iterator[str]:
    """Yield secrets in `text`, such as the token of the login, and paths of this machine."""
    own = get_token()
    if own and own in text:
        yield f"{own[:4]}..."
    for match in SECRETS.finditer(COMMITS.sub("", text)):
        yield f"{match[0][:12]}..."
    for match in LOCAL_PATHS.finditer(text):
        yield match[0]
