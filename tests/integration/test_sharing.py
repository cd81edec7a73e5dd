"""A model is uploaded to a stand-in for the Hub, and loaded from there with and without the package."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import huggingface_hub
import pytest
import transformers
from hub_stand_in import COMMIT, running_hub
from safetensors.torch import load_file, save_file
from shortcuts import change_json
from tiny_training import DESCRIPTION
from transformers import AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer

from vaswani_transformer import VaswaniForConditionalGeneration, VaswaniModel, cli
from vaswani_transformer.hub import upload as sharing
from vaswani_transformer.hub.upload import write_upload
from vaswani_transformer.loading import load_translator
from vaswani_transformer.model.pipeline_vaswani import custom_pipelines

SENTENCES = ["a dog runs", "", "two cats sleep on the bed", "a dog"]
TOKEN = "hf_" + "abcdefghijkl" * 3
# The files of code that are uploaded with a model. A tokenizer needs no code.
CODE = {path.name for path in (Path(cli.__file__).parent / "model").glob("*_vaswani.py")}
CONFIGS = {"config.json", "example.json", "generation_config.json", "tokenizer_config.json"}
FILES = {"README.md", "model.safetensors", "tokenizer.json", *CONFIGS, *CODE}


@pytest.fixture(scope="module")
def run(build_translator, tmp_path_factory):
    """Return the folder of a finished run, with an untrained model."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    model, tokenizer = build_translator(SENTENCES * 3)
    model.config.custom_pipelines = custom_pipelines("translation_en_to_de")
    model.generation_config.num_beams = 3
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    (folder / "recipe.json").write_text(json.dumps(DESCRIPTION))
    line = {"update": 50, "loss": 3.0, "target_tokens_per_second": 1234.5, "target_tokens": 9, "seconds": 7200.0}
    (folder / "log.jsonl").write_text(f'{json.dumps(line)}\n{{"update": 58, "dev_perplexity": 7.25}}\n')
    return folder


@pytest.fixture
def hostile(run, tmp_path):
    """Return a copy of the run that also holds files and values that must not be uploaded."""
    folder = tmp_path / "hostile"
    shutil.copytree(run, folder)
    model = folder / "model"
    state = folder / "checkpoints/step-00000058/training_state"
    state.mkdir(parents=True)
    names = ("optimizer.bin", "pytorch_model.bin", "evil_vaswani.py", ".git-credentials")
    for path in (folder / "tensorboard.out", folder / ".env", state / "optimizer.bin", *map(model.joinpath, names)):
        path.write_text(f"token {TOKEN} in {tmp_path}")
    (model / "id_rsa").symlink_to("/etc/hostname")
    tasks = custom_pipelines("translation_en_to_de")
    tasks["translation_en_to_fr"] = {"impl": "me/evil--code.Pipeline", "pt": []}
    secret = {"translation": {"api_key": TOKEN}}
    change_json(model / "config.json", _name_or_path=str(tmp_path), custom_pipelines=tasks, task_specific_params=secret)
    change_json(model / "tokenizer_config.json", name_or_path=str(tmp_path))
    weights = load_file(model / "model.safetensors")
    save_file(weights, model / "model.safetensors", metadata={"format": "pt", "note": f"{TOKEN} {tmp_path}"})
    return folder


@pytest.fixture
def hub(monkeypatch):
    """Yield a running stand-in for the Hub. This process uses it as the Hub."""
    with running_hub() as hub:
        for name, value in {
            "ENDPOINT": hub.url,
            "HUGGINGFACE_CO_URL_TEMPLATE": hub.url + "/{repo_id}/resolve/{revision}/{filename}",
            "HF_HUB_OFFLINE": False,  # the environment may have set HF_HUB_OFFLINE=1
        }.items():
            monkeypatch.setattr(huggingface_hub.constants, name, value)
        monkeypatch.setattr(transformers.utils.hub, "_hf_api", None)
        monkeypatch.setenv("HF_TOKEN", "a token of the stand-in")
        yield hub


def test_one_command_uploads_model_tokenizer_code_and_card_and_nothing_private(run, hostile, hub, tmp_path, output_of):
    for folder, more in ((run, "--private"), (hostile, "")):
        repository = f"me/{folder.name}"
        printed = output_of(f"push --model {folder} --repo_id {repository} {more}")
        files = hub.repositories[repository]
        assert files.keys() == FILES
        assert f'model="{repository}"' in files["README.md"].decode()
        assert ", ".join(sorted(files)) in printed
        for name in ("model.safetensors", "tokenizer.json"):
            assert files[name] == (run / "model" / name).read_bytes()
        for name, data in files.items():
            assert not any(text.encode() in data for text in (TOKEN, str(tmp_path), "evil")), name
    assert hub.private == {"me/tiny"}
    tasks = ["translation", "translation_en_to_de", "translation_en_to_fr"]
    assert list(json.loads(files["config.json"])["custom_pipelines"]) == tasks


def test_a_dry_run_writes_the_files_that_would_be_uploaded(run, tmp_path, output_of):
    printed = output_of(f"push --model {run} --repo_id me/tiny --dry_run {tmp_path}/seen")
    assert set(printed.split()) == set(os.listdir(tmp_path / "seen")) == FILES


@pytest.mark.parametrize("file", ["config.json", "generation_config.json", "tokenizer_config.json"])
def test_the_card_of_the_folder_is_uploaded_and_an_unknown_field_of_a_config_is_refused(run, tmp_path, file):
    model = shutil.copytree(run / "model", tmp_path / "model")
    (model / "README.md").write_text("---\nlicense: mit\n---\nMine, OWNER/NAME.\n")
    write_upload(model, tmp_path / "upload", repo_id="me/tiny")
    assert (tmp_path / "upload/README.md").read_text() == "---\nlicense: mit\n---\nMine, me/tiny.\n"
    change_json(model / file, api_key="hf_1")
    with pytest.raises(ValueError, match="would publish them: api_key"):
        write_upload(model, tmp_path / "again", repo_id="me/tiny")


@pytest.mark.parametrize(
    ("file", "field"),
    [
        ("config.json", "save_pretrained"),
        ("config.json", "is_local"),
        ("generation_config.json", "push_to_hub"),
        ("tokenizer_config.json", "api_token"),
    ],
)
def test_names_of_methods_and_fields_of_other_files_are_unknown_and_a_dry_run_can_be_repeated(
    run, tmp_path, error_of, output_of, file, field
):
    run = shutil.copytree(run, tmp_path / "run")
    settings = (run / "model" / file).read_text()
    change_json(run / "model" / file, **{field: TOKEN})
    command = f"push --model {run} --repo_id me/tiny --dry_run {tmp_path}/seen"
    assert error_of(command).count("\n") == 1
    (run / "model" / file).write_text(settings)
    assert set(output_of(command).split()) == set(os.listdir(tmp_path / "seen")) == FILES


def test_a_run_that_was_continued_does_not_upload_its_outdated_card(run, tmp_path):
    run = shutil.copytree(run, tmp_path / "continued")
    checkpoint = shutil.copytree(run / "model", run / "checkpoints/step-00000099")
    (checkpoint / "COMPLETE").write_text('{"files": {}}')
    (run / "model/UPDATE").write_text("50")
    (run / "model/README.md").write_text("of update 50")
    write_upload(run, tmp_path / "upload", repo_id="me/tiny")
    assert "updates: 99 done" in (tmp_path / "upload/README.md").read_text()


def test_an_upload_without_a_card_a_login_or_the_hub_is_refused_and_so_is_a_private_upload_to_a_public_repository(
    run, hub, tmp_path, monkeypatch, error_of
):
    model = shutil.copytree(run / "model", tmp_path / "alone/model")
    with pytest.raises(ValueError, match=r"has no card: write README\.md beside its config.json"):
        sharing.upload_model(model, "me/tiny")
    with pytest.raises(ValueError, match="Repo id must be in the form"):
        write_upload(model, tmp_path, repo_id="me/tiny/model")
    assert not hub.requests
    hub.repositories["me/tiny"] = {}
    with pytest.raises(ValueError, match="me/tiny exists already and is public: nothing was uploaded"):
        sharing.upload_model(run, "me/tiny", private=True)
    assert not hub.repositories["me/tiny"]
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:1")
    assert "the Hugging Face Hub does not answer" in error_of(f"push --model {run} --repo_id me/tiny")
    monkeypatch.setattr(sharing, "get_token", lambda: None)
    with pytest.raises(ValueError, match="uploading needs a login: run `hf auth login`, or set HF_TOKEN"):
        sharing.upload_model(run, "me/tiny")


def run_elsewhere(program, *arguments, hub, folder, home):
    """Run `program` in `folder` in a fresh process that reaches the stand-in. Return its last output line as JSON."""
    offline = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    environment = {name: value for name, value in os.environ.items() if name not in offline}
    environment |= {"HF_ENDPOINT": hub.url, "HF_HOME": str(home)}
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


LOAD = """
import json, sys
from vaswani_transformer.loading import fingerprint_model, load
found = load("me/tiny")
print(json.dumps([found.folder.name, found.fingerprint == fingerprint_model(found.folder), len(found.tokenizer)]))
"""


def test_all_files_of_a_hub_model_are_loaded_from_the_same_commit(run, hub, tmp_path):
    sharing.upload_model(run, "me/tiny")
    hub.requests.clear()
    results = run_elsewhere(LOAD, hub=hub, folder=tmp_path, home=tmp_path / "home")
    assert results == [COMMIT, True, len(load_translator(run)[1])]
    from_main = [path for _, path in hub.requests if "/resolve/main/" in path]
    assert set(from_main) == {"/me/tiny/resolve/main/config.json"}


def test_push_to_hub_uploads_the_files_that_save_pretrained_writes(run, hub):
    for part in load_translator(run):
        part.push_to_hub("me/plain")
    files = hub.repositories["me/plain"]
    assert files.keys() >= {"README.md", "config.json", "model.safetensors", "tokenizer.json", *CODE}
    for name, data in files.items():
        assert str(run).encode() not in data
        assert b"name_or_path" not in data or not name.endswith(".json")


# Loading


def test_trust_remote_code_loads_the_classes_of_the_package_if_the_package_is_imported(run):
    folder = run / "model"
    for auto, expected in ((AutoModelForSeq2SeqLM, VaswaniForConditionalGeneration), (AutoModel, VaswaniModel)):
        assert type(auto.from_pretrained(folder, trust_remote_code=True)) is expected
    trusting, plain = (AutoTokenizer.from_pretrained(folder, trust_remote_code=trust) for trust in (True, False))
    assert len(trusting) == len(plain)


ELSEWHERE = """
import json, sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "vaswani_transformer":
            raise ModuleNotFoundError(name)
hide = Hide()
sys.meta_path.insert(0, hide)
import huggingface_hub, torch, transformers
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer
from transformers.dynamic_module_utils import get_class_from_dynamic_module
torch.set_num_threads(1)
name, folder, sentences = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
results = {}

def refusal(load):
    try:
        load()
    except Exception as error:
        return f"{type(error).__name__}: {error}"

results["refused"] = [
    refusal(lambda: AutoModelForSeq2SeqLM.from_pretrained(source, trust_remote_code=False)) for source in (name, folder)
]
tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=True)
inputs = tokenizer(sentences, return_tensors="pt", padding=True)

def tokens(model):
    return [model.generate(**inputs, max_new_tokens=6, **search).tolist() for search in ({}, {"num_beams": 1})]

model = AutoModelForSeq2SeqLM.from_pretrained(name, trust_remote_code=True)
results["types"] = [
    type(loaded).__name__
    for loaded in (
        model,
        AutoModel.from_pretrained(name, trust_remote_code=True),
        AutoConfig.from_pretrained(name, trust_remote_code=True),
    )
]
search = model.generation_config
results["search"] = [search.num_beams, search.length_penalty_type, search.max_length_offset]
results["tokens"] = tokens(model)
pipeline = transformers.pipeline("translation_en_to_de", model=name, trust_remote_code=True)
results["texts"] = [result["translation_text"] for result in pipeline(sentences, max_new_tokens=6)]
results["other languages"] = refusal(lambda: pipeline("a dog", src_lang="fr", tgt_lang="ja"))
build_pipeline = get_class_from_dynamic_module("pipeline_vaswani.TranslationPipeline", model.name_or_path)
from_objects = build_pipeline(model=model, tokenizer=tokenizer)
results["removed tasks"] = "translation" in transformers.pipelines.REMOVED_TASKS
results["from objects"] = [result["translation_text"] for result in from_objects(sentences, max_new_tokens=6)]
pipeline.save_pretrained(sys.argv[4])
again = transformers.pipeline("translation", model=sys.argv[4], trust_remote_code=True)
results["saved again"] = [result["translation_text"] for result in again(sentences, max_new_tokens=6)]
results["models"] = [type(loaded.model).__name__ for loaded in (pipeline, again)]
results["hidden"] = "vaswani_transformer" not in sys.modules

huggingface_hub.constants.HF_HUB_OFFLINE = True
results["offline"] = tokens(AutoModelForSeq2SeqLM.from_pretrained(name, trust_remote_code=True))

# This cache forgets the first token. The search must notice the error, and work without a cache.
layer = transformers.cache_utils.DynamicLayer
update = layer.update
layer.update = lambda *given: tuple(x * (torch.arange(x.shape[2])[:, None] > 0) for x in update(*given))
forgetful = AutoModelForSeq2SeqLM.from_pretrained(name, trust_remote_code=True)
results["forgetful"] = tokens(forgetful)
layer.update = update
search_code = sys.modules[type(model).__module__.replace("modeling", "search")]
results["caches"] = [min(search_code.find_ways(searched).values()) > 0 for searched in (model, forgetful)]

sys.meta_path.remove(hide)
import vaswani_transformer
packaged = AutoModelForSeq2SeqLM.from_pretrained(folder)
results["with the package"] = [
    tokens(packaged),
    tokens(model),
    type(packaged) is vaswani_transformer.VaswaniForConditionalGeneration,
    type(packaged) is type(model),
    isinstance(pipeline, vaswani_transformer.TranslationPipeline),
]
print(json.dumps(results))
"""


def test_an_uploaded_model_works_with_and_without_the_package(run, hub, tmp_path):
    sharing.upload_model(run, "me/tiny")
    arguments = ["me/tiny", run / "model", json.dumps(SENTENCES), tmp_path / "saved again"]
    results = run_elsewhere(ELSEWHERE, *arguments, hub=hub, folder=tmp_path, home=tmp_path / "home")
    model, tokenizer = load_translator(run)
    inputs = tokenizer(SENTENCES, return_tensors="pt", padding=True)
    expected, greedy = (model.generate(**inputs, max_new_tokens=6, **search) for search in ({}, {"num_beams": 1}))
    texts, expected = tokenizer.batch_decode(expected, skip_special_tokens=True), [expected.tolist(), greedy.tolist()]
    texts = [text if sentence else "" for sentence, text in zip(SENTENCES, texts, strict=True)]
    for refused in results.pop("refused"):
        assert refused.startswith("ValueError: The repository ")
        assert "contains custom code which must be executed" in refused
    assert results == {
        "types": ["VaswaniForConditionalGeneration", "VaswaniModel", "VaswaniConfig"],
        "search": [3, "gnmt", 50],
        **dict.fromkeys(("tokens", "offline", "forgetful"), expected),
        "caches": [True, False],
        **dict.fromkeys(("texts", "from objects", "saved again"), texts),
        "other languages": "ValueError: this model translates from en to de; src_lang is fr, tgt_lang is ja.",
        "models": ["VaswaniForConditionalGeneration"] * 2,  # pipelines keep the class of the model
        "hidden": True,
        "removed tasks": True,  # the code of the model has left REMOVED_TASKS unchanged
        "with the package": [expected, expected, True, False, False],
    }
