import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import chdir
from pathlib import Path

import huggingface_hub
import pytest
import torch
import transformers
from hub_stand_in import COMMIT, running_hub
from huggingface_hub import SpaceCard
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer

from vaswani_transformer import VaswaniForConditionalGeneration, VaswaniModel, cli
from vaswani_transformer.hub import space
from vaswani_transformer.hub import upload as sharing
from vaswani_transformer.hub.card import build_card
from vaswani_transformer.hub.demo import Demo
from vaswani_transformer.hub.space import write_space
from vaswani_transformer.hub.upload import find_leaks, write_upload
from vaswani_transformer.loading import load_translator
from vaswani_transformer.model.pipeline_vaswani import custom_pipelines
from vaswani_transformer.training.recipes import RECIPES

SENTENCES = ["a dog runs", "", "two cats sleep on the bed", "a dog"]
TOKEN = "hf_" + "abcdefghijkl" * 3
# What a model needs to be loaded; its tokenizer needs no code.
CODE = {path.name for path in (Path(cli.__file__).parent / "model").glob("*_vaswani.py")}


@pytest.fixture(scope="module")
def run(build_translator, tmp_path_factory):
    """The folder of a finished run, whose model has learnt nothing."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    model, tokenizer = build_translator(SENTENCES * 3)
    model.config.custom_pipelines = custom_pipelines("translation_en_to_de")
    model.generation_config.num_beams = 3
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    recipe = {
        "recipe": RECIPES["multi30k_tiny"].to_dict(),
        "seed": 3,
        "data": "1f",
        "init_from": None,
        "init_fingerprint": None,
        "mixed_precision": "no",
        "num_processes": 2,
        "num_parameters": model.num_parameters(),
        "versions": {"python": "3.11.7", "torch": "2.13.0+cpu"},
    }
    (folder / "recipe.json").write_text(json.dumps(recipe))
    line = {"update": 50, "loss": 3.0, "target_tokens_per_second": 1234.5, "seconds": 7200.0}
    (folder / "log.jsonl").write_text(f'{json.dumps(line)}\n{{"update": 58, "dev_perplexity": 7.25}}\n')
    return folder


@pytest.fixture
def hostile(run, tmp_path):
    """The same run with everything in it that must not get out."""
    folder = tmp_path / "hostile"
    shutil.copytree(run, folder)
    model = folder / "model"
    state = folder / "checkpoints" / "step-00000058" / "training_state"
    state.mkdir(parents=True)
    for path in (
        folder / "tensorboard.out",
        folder / ".env",
        state / "optimizer.bin",
        model / "optimizer.bin",
        model / "pytorch_model.bin",
        model / "evil_vaswani.py",
        model / ".git-credentials",
    ):
        path.write_text(f"token {TOKEN} in {tmp_path}")
    (model / "id_rsa").symlink_to("/etc/hostname")
    for name, values in (
        ("config.json", {"_name_or_path": str(tmp_path), "hub_token": TOKEN, "training_file": str(tmp_path / "a.en")}),
        ("generation_config.json", {"corpus": str(tmp_path)}),
        ("tokenizer_config.json", {"name_or_path": str(tmp_path), "tokenizer_file": str(tmp_path / "t.json")}),
        ("tokenizer_config.json", {"my_password": "hunter2", "note": "evil"}),
    ):
        saved = json.loads((model / name).read_text())
        (model / name).write_text(json.dumps(saved | values))
    config = json.loads((model / "config.json").read_text())
    config["custom_pipelines"]["translation_en_to_fr"] = {"impl": "me/evil--code.Pipeline", "pt": []}
    (model / "config.json").write_text(json.dumps(config))
    weights = load_file(model / "model.safetensors")
    save_file(weights, model / "model.safetensors", metadata={"format": "pt", "note": f"{TOKEN} {tmp_path}"})
    return folder


@pytest.fixture
def hub(monkeypatch):
    """The stand-in, in place of the Hub for this process."""
    with running_hub() as hub:
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)  # also where the environment says so
        template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(transformers.utils.hub, "_hf_api", None)
        monkeypatch.setenv("HF_TOKEN", "a token of the stand-in")
        yield hub


def test_one_command_uploads_model_tokenizer_code_and_card_and_nothing_else(run, hub, capsys):
    assert cli.main(["push", "--model", str(run), "--repo_id", "me/tiny", "--private"]) == 0
    files = hub.repositories["me/tiny"]
    expected = {"README.md", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json"}
    assert files.keys() == expected | {"tokenizer_config.json"} | CODE
    assert hub.private == {"me/tiny"}
    assert files["model.safetensors"] == (run / "model" / "model.safetensors").read_bytes()
    assert files["tokenizer.json"] == (run / "model" / "tokenizer.json").read_bytes()
    assert 'model="me/tiny"' in files["README.md"].decode()
    assert ", ".join(sorted(files)) in capsys.readouterr().out


def test_nothing_private_of_a_hostile_run_gets_out(hostile, hub, tmp_path):
    assert cli.main(["push", "--model", str(hostile), "--repo_id", "me/tiny"]) == 0
    files = hub.repositories["me/tiny"]
    assert {name for name in files if name.endswith(".py")} == CODE
    private = {"pytorch_model.bin", "optimizer.bin", "id_rsa", ".git-credentials", "recipe.json", "log.jsonl"}
    assert private.isdisjoint(files)
    for name, data in files.items():
        assert not any(text.encode() in data for text in (TOKEN, str(tmp_path), "evil", "hunter2")), name
    saved = json.loads((hostile / "model" / "tokenizer_config.json").read_text())
    given = {"name_or_path", "tokenizer_file", "my_password", "note"}
    assert json.loads(files["tokenizer_config.json"]) == {name: saved[name] for name in saved.keys() - given}
    assert {"hub_token", "training_file", "_name_or_path"}.isdisjoint(json.loads(files["config.json"]))
    tasks = ["translation", "translation_en_to_de", "translation_en_to_fr"]
    assert list(json.loads(files["config.json"])["custom_pipelines"]) == tasks


@pytest.mark.parametrize(
    ("text", "leak"),
    [
        (f"Trained with {TOKEN}.", "hf_abcdefghi"),
        ("Logged in with `a token of the stand-in`.", r"a to\.\.\."),
        ("The key is AIza" + "SyB-1x" * 6, "AIzaSyB-1xSy"),
        ("AKIA" + "IOSFODNN7EXAMPLE", "AKIAIOSFODNN"),
        ("aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "secret_acces"),
        ("WANDB_API_KEY=" + "0f" * 20, "API_KEY=0f0f"),
        ("It was logged by " + "0f" * 20 + ".", "0f0f0f0f0f0f"),
        ("The data lay at https://me:hunter2@example.com/train.en.", "https://me:h"),
        ('"db_password": "hunter2"', "password"),
        ("pypi-" + "AgEIcHlwaS5vcmc" * 2, "pypi-AgEIcHl"),
        ("sk-proj-" + "a1B2" * 8, "sk-proj-a1B2"),
        ("The data lay in `/home/me/corpus/train.en`.", "/home/me/corpus/train.en"),
        ("The data lay in **/home/me/corpus/train**", "/home/me/corpus/train"),
        (r"It lay in C:\Users\me\corpus.", r"C:\\\\Users\\\\me\\\\corpus"),
    ],
)
def test_a_card_with_a_secret_or_a_local_path_is_refused_before_anything_is_uploaded(run, hub, tmp_path, text, leak):
    model = shutil.copytree(run / "model", tmp_path / "model")
    (model / "README.md").write_text(build_card(run) + text)
    with pytest.raises(ValueError, match=rf"README.md of .* would publish '{leak}.*nothing of it was uploaded"):
        sharing.upload_model(model, "me/tiny")
    assert not hub.requests


def test_no_leak_is_seen_where_there_is_none(run):
    text = (
        "See https://huggingface.co/me/tiny/blob/main/README.md, text/plain, <b>a/b/c</b>, and/or, 1/2/3, `a/b/c.en`."
    )
    commit = "0f" * 20
    text += (
        f" Made at commit {commit}, see https://github.com/me/code/tree/{commit} and code@{commit}; revision={commit}. "
        f"SHA-256 {commit + commit[:24]}. The secret: train longer. password: yours. tokens: 4,096. A token a word. "
        f"`git clone ssh://git@example.com/code`, http://127.0.0.1:7860, a task-force of sk-learners. "
        f"Asia-Pacific-languages-only."
    )
    assert not list(find_leaks(text + build_card(run)))
    assert list(find_leaks("search shortlist:/srv/lists/en.txt")) == ["/srv/lists/en.txt"]


def test_the_card_of_the_folder_is_uploaded_as_it_is(run, tmp_path):
    model = shutil.copytree(run / "model", tmp_path / "model")
    (model / "README.md").write_text("---\nlicense: mit\n---\nMine, OWNER/NAME.\n")
    write_upload(model, tmp_path / "upload", repo_id="me/tiny")
    assert (tmp_path / "upload" / "README.md").read_text() == "---\nlicense: mit\n---\nMine, me/tiny.\n"


def test_a_model_without_a_card_is_refused(run, hub, tmp_path):
    model = shutil.copytree(run / "model", tmp_path / "alone" / "model")
    with pytest.raises(ValueError, match=r"has no card: write README\.md beside its config.json"):
        sharing.upload_model(model, "me/tiny")
    assert not hub.requests


def test_what_shall_be_private_is_not_uploaded_where_all_can_see_it(run, hub):
    hub.repositories["me/tiny"] = {}
    with pytest.raises(ValueError, match="me/tiny exists already and is public: nothing was uploaded"):
        sharing.upload_model(run, "me/tiny", private=True)
    assert not hub.repositories["me/tiny"]


def test_without_a_login_or_an_owner_nothing_is_tried(run, hub, monkeypatch):
    with pytest.raises(ValueError, match="a repository of the Hub is OWNER/NAME, got 'tiny': put your user name"):
        sharing.upload_model(run, "tiny")
    monkeypatch.setattr(sharing, "get_token", lambda: None)
    with pytest.raises(ValueError, match="uploading needs a login: run `hf auth login`, or set HF_TOKEN"):
        sharing.upload_model(run, "me/tiny")
    assert not hub.requests


def test_a_hub_out_of_reach_is_said_in_one_line(run, hub, monkeypatch, capsys):
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:1")
    assert cli.main(["push", "--model", str(run), "--repo_id", "me/tiny"]) == 1
    assert "vaswani push: the Hub cannot be reached" in capsys.readouterr().err


# The Space


PAGE = set(space.PAGE_FILES)


def test_with_space_the_page_is_uploaded_too_and_nothing_else(run, hub, capsys):
    assert cli.main(["push", "--model", str(run), "--repo_id", "me/tiny", "--space"]) == 0
    files = hub.repositories["spaces/me/tiny"]
    code = {f"vaswani_transformer/{name}" for name in PAGE | {f"model/{name}" for name in CODE}}
    assert files.keys() == {"README.md", "app.py", "requirements.txt", "settings.json"} | code
    package = Path(cli.__file__).parent
    assert files["app.py"] == (package / "hub" / "space_app.py").read_bytes()
    assert all(files[name] == (package.parent / name).read_bytes() for name in code)
    assert json.loads(files["settings.json"]) == {"model": "me/tiny", "revision": COMMIT, "languages": ["en", "de"]}
    requirements = files["requirements.txt"].decode().splitlines()
    assert f"transformers=={transformers.__version__}" in requirements
    assert f"torch=={torch.__version__.partition('+')[0]}" in requirements
    card = SpaceCard(files["README.md"].decode())
    assert (card.data.sdk, card.data.app_file, card.data.models) == ("gradio", "app.py", ["me/tiny"])
    assert ", ".join(sorted(files)) in capsys.readouterr().out


def test_without_it_there_is_no_space(run, hub):
    assert cli.main(["push", "--model", str(run), "--repo_id", "me/tiny"]) == 0
    assert hub.repositories.keys() == {"me/tiny"}


def test_nothing_of_a_hostile_model_gets_into_its_space_but_its_name(run, hostile, hub, tmp_path):
    assert cli.main(["push", "--model", str(run), "--repo_id", "me/clean", "--space"]) == 0
    sharing.upload_model(hostile, "me/tiny")
    files = hub.repositories["me/tiny"]
    # What a Space is made from lies on the Hub, where others may have written it.
    tasks = [f"translation_{TOKEN}_to_de", f"translation_en_to_{tmp_path}", "translation_<script>_to_evil"]
    for name in ("config.json", "tokenizer_config.json"):
        values = json.loads(files[name]) | {"custom_pipelines": dict.fromkeys(tasks), "hub_token": TOKEN}
        files[name] = json.dumps(values).encode()
    for name in ("app.py", "requirements.txt", "settings.json", "vaswani_transformer/hub/demo.py", "demo_vaswani.py"):
        files[name] = b"evil"
    sharing.upload_space("me/tiny")
    made, clean = (hub.repositories[f"spaces/me/{name}"] for name in ("tiny", "clean"))
    assert made.keys() == clean.keys()
    for name, data in made.items():
        assert not any(leak in data for leak in (TOKEN.encode(), str(tmp_path).encode(), b"evil", b"<script>_to")), name
        if name not in ("README.md", "settings.json"):
            assert data == clean[name], name
    assert json.loads(made["settings.json"]) == {"model": "me/tiny", "revision": COMMIT, "languages": None}
    assert made["README.md"] == clean["README.md"].replace(b"me/clean", b"me/tiny").replace(b"with clean", b"with tiny")


@pytest.mark.parametrize(
    ("text", "leak"), [(f"# {TOKEN}", "hf_abcdefghi"), ("# from /home/me/corpus.en", "/home/me/corpus.en")]
)
def test_a_space_whose_code_holds_a_secret_or_a_local_path_is_refused(run, hub, tmp_path, monkeypatch, text, leak):
    sharing.upload_model(run, "me/tiny")
    package = shutil.copytree(space.PACKAGE, tmp_path / space.PACKAGE.name)
    with (package / "hub" / "demo.py").open("a") as file:
        file.write(text)
    monkeypatch.setattr(space, "PACKAGE", package)
    with pytest.raises(ValueError, match=rf"vaswani_transformer/hub/demo.py of the Space would publish '{leak}"):
        sharing.upload_space("me/tiny")
    assert hub.repositories.keys() == {"me/tiny"}


def test_the_space_of_a_private_model_is_private(run, hub):
    assert cli.main(["push", "--model", str(run), "--repo_id", "me/tiny", "--private", "--space"]) == 0
    assert hub.private == {"me/tiny", "spaces/me/tiny"}


def test_a_private_model_is_not_shown_by_a_space_that_all_can_see(run, hub):
    sharing.upload_model(run, "me/tiny", private=True)
    hub.repositories["spaces/me/tiny"] = {}
    with pytest.raises(ValueError, match="the Space me/tiny exists already and is public, but the model is private"):
        sharing.upload_space("me/tiny")
    assert not hub.repositories["spaces/me/tiny"]


@pytest.mark.parametrize("file", ["app.py", "index.html"])
def test_a_space_that_shows_something_else_is_left_alone(run, hub, file):
    sharing.upload_model(run, "me/tiny")
    hub.repositories["spaces/me/tiny"] = {"README.md": b"", file: b"mine"}
    with pytest.raises(ValueError, match="the Space me/tiny exists already and shows something else"):
        sharing.upload_space("me/tiny")
    assert hub.repositories["spaces/me/tiny"] == {"README.md": b"", file: b"mine"}


def test_a_space_is_uploaded_again(run, hub):
    for _ in range(2):
        assert cli.main(["push", "--model", str(run), "--repo_id", "me/tiny", "--space"]) == 0


def test_a_space_names_what_the_tokenizer_of_a_marian_model_needs(tmp_path):
    for name, needs in (("with", True), ("without", False)):
        write_space(tmp_path / name, model_id="me/a", revision="1", languages=None, needs_sentencepiece=needs)
        assert ("sentencepiece==" in (tmp_path / name / "requirements.txt").read_text()) == needs


@pytest.mark.parametrize(
    ("installed", "line"),
    [
        ("2.14.0.dev20261101+cpu", r"torch>=[\d.]+"),
        ("2.13.0+cu128", r"torch==2\.13\.0"),
        ("2.5.1.post1", r"torch==2\.5\.1\.post1"),
    ],
)
def test_a_space_asks_for_the_installed_release_or_any_that_the_package_takes(tmp_path, monkeypatch, installed, line):
    versions = {"torch": installed, "transformers": "5.24.0.dev0", "numpy": "2.4.6"}
    monkeypatch.setattr(space, "version", versions.get)
    write_space(tmp_path / "space", model_id="me/a", revision="1", languages=None, needs_sentencepiece=False)
    torch_line, transformers_line, numpy_line = (tmp_path / "space" / "requirements.txt").read_text().splitlines()
    assert re.fullmatch(line, torch_line)
    assert numpy_line == "numpy==2.4.6"
    assert re.fullmatch(r"transformers(>=[\d.]+,<6|<6,>=[\d.]+)", transformers_line)


IN_THE_SPACE = """
import json, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
import app
settings = json.loads(app.SETTINGS.read_text())
demo = app.load_demo(settings["model"], settings["revision"])
answer = demo.answer(sys.argv[1], 2)
print(json.dumps({
    "texts": [translation.text for translation in answer.translations],
    "frame": demo.show_attention(answer, 1)[:7],
    "code": [module.__file__ for name, module in sys.modules.items() if name.startswith("vaswani_transformer")],
    "foreign": [name for name in sys.modules if name.startswith("transformers_modules")],
}))
"""


def run_elsewhere(program, *arguments, hub, folder, home):
    """What `program` tells as JSON, run in `folder` by a fresh process that reaches the stand-in."""
    offline = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    environment = {name: value for name, value in os.environ.items() if name not in offline}
    environment |= {"HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1"}
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_code_in_the_space_shows_the_uploaded_model(run, hub, tmp_path):
    assert cli.main(["push", "--model", str(run), "--repo_id", "me/tiny", "--space"]) == 0
    folder = tmp_path / "app"
    for name, data in hub.repositories["spaces/me/tiny"].items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    told = run_elsewhere(IN_THE_SPACE, "a dog runs", hub=hub, folder=folder, home=tmp_path / "home")
    expected = Demo(*load_translator(run)).answer("a dog runs", 2)
    assert told["texts"] == [translation.text for translation in expected.translations]
    assert told["frame"] == "<iframe"
    assert all(Path(path).is_relative_to(folder) for path in told["code"])
    assert not told["foreign"]


def test_push_to_hub_of_transformers_uploads_what_saving_writes(run, hub):
    model, tokenizer = load_translator(run)
    model.push_to_hub("me/plain")
    tokenizer.push_to_hub("me/plain")
    files = hub.repositories["me/plain"]
    assert files.keys() >= {"README.md", "config.json", "model.safetensors", "tokenizer.json", *CODE}
    assert all(str(run).encode() not in data for data in files.values())


def test_saved_files_carry_no_local_path(run, tmp_path):
    model, tokenizer = load_translator(run)
    with chdir(run):
        relative = AutoModelForSeq2SeqLM.from_pretrained("model")
    for number, saved in enumerate((model, tokenizer, relative)):
        saved.save_pretrained(tmp_path / str(number))
    for path in tmp_path.rglob("*.json"):
        assert str(run) not in path.read_text()
        assert "name_or_path" not in path.read_text()


# Loading


def test_tied_weights_are_stored_once(run):
    with safe_open(run / "model" / "model.safetensors", framework="pt") as file:
        names = set(file.keys())
        assert "model.shared.weight" in names
        assert names.isdisjoint({"lm_head.weight", "model.encoder.embed_tokens.weight"})
        assert file.metadata() == {"format": "pt"}


@pytest.mark.parametrize(
    "options", [{"device_map": "auto"}, {"torch_dtype": torch.float32}, {"local_files_only": True}]
)
def test_ways_of_loading_translate_alike(run, options):
    model, tokenizer = load_translator(run)
    inputs = tokenizer(SENTENCES, return_tensors="pt", padding=True)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(run / "model", **options)
    assert torch.equal(loaded.generate(**inputs, max_new_tokens=6), model.generate(**inputs, max_new_tokens=6))


@pytest.mark.parametrize("name", ["dtype", "torch_dtype"])
def test_both_names_of_the_precision_are_understood(run, name):
    assert AutoModelForSeq2SeqLM.from_pretrained(run / "model", **{name: torch.bfloat16}).dtype == torch.bfloat16


def test_with_the_package_its_own_classes_load_a_model_with_trust_too(run):
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
torch.set_num_threads(1)
name, folder, sentences = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
told = {}

def refusal(load):
    try:
        load()
    except Exception as error:
        return f"{type(error).__name__}: {error}"

told["refused"] = [
    refusal(lambda: AutoModelForSeq2SeqLM.from_pretrained(place, trust_remote_code=False)) for place in (name, folder)
]
tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=True)
inputs = tokenizer(sentences, return_tensors="pt", padding=True)

def tokens(model):
    return model.generate(**inputs, max_new_tokens=6).tolist()

model = AutoModelForSeq2SeqLM.from_pretrained(name, trust_remote_code=True)
told["types"] = [
    type(loaded).__name__
    for loaded in (
        model,
        AutoModel.from_pretrained(name, trust_remote_code=True),
        AutoConfig.from_pretrained(name, trust_remote_code=True),
    )
]
search = model.generation_config
told["search"] = [search.num_beams, search.length_penalty_type, search.max_length_offset]
told["tokens"] = tokens(model)
pipeline = transformers.pipeline("translation_en_to_de", model=name, trust_remote_code=True)
told["texts"] = [result["translation_text"] for result in pipeline(sentences, max_new_tokens=6)]
pipeline.save_pretrained(sys.argv[4])
again = transformers.pipeline("translation", model=sys.argv[4], trust_remote_code=True)
told["saved again"] = [result["translation_text"] for result in again(sentences, max_new_tokens=6)]
told["engines"] = [type(one.engine).__name__ for one in (pipeline, again)]
told["hidden"] = "vaswani_transformer" not in sys.modules

huggingface_hub.constants.HF_HUB_OFFLINE = True
told["offline"] = tokens(AutoModelForSeq2SeqLM.from_pretrained(name, trust_remote_code=True))

sys.meta_path.remove(hide)
import vaswani_transformer
both = AutoModelForSeq2SeqLM.from_pretrained(folder)
told["both"] = [tokens(both), tokens(model), type(both) is vaswani_transformer.VaswaniForConditionalGeneration,
                type(both) is type(model), isinstance(pipeline, vaswani_transformer.TranslationPipeline)]
print(json.dumps(told))
"""


def test_an_uploaded_model_works_where_the_package_is_not_and_beside_it(run, hub, tmp_path):
    sharing.upload_model(run, "me/tiny")
    arguments = ["me/tiny", str(run / "model"), json.dumps(SENTENCES), str(tmp_path / "saved again")]
    told = run_elsewhere(ELSEWHERE, *arguments, hub=hub, folder=tmp_path, home=tmp_path / "home")
    model, tokenizer = load_translator(run)
    inputs = tokenizer(SENTENCES, return_tensors="pt", padding=True)
    expected = model.generate(**inputs, max_new_tokens=6)
    texts = tokenizer.batch_decode(expected, skip_special_tokens=True)
    for refused in told["refused"]:
        assert refused.startswith("ValueError: The repository ")
        assert "contains custom code which must be executed" in refused
    assert told["types"] == ["VaswaniForConditionalGeneration", "VaswaniModel", "VaswaniConfig"]
    assert told["search"] == [3, "gnmt", 50]
    assert told["tokens"] == told["offline"] == expected.tolist()
    texts = [text if sentence else "" for sentence, text in zip(SENTENCES, texts, strict=True)]
    assert told["texts"] == told["saved again"] == texts
    assert told["engines"] == ["Engine", "Engine"]
    assert told["hidden"]
    assert told["both"] == [expected.tolist(), expected.tolist(), True, False, False]
