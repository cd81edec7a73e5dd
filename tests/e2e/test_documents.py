"""Every code block, command and link in the READMEs and model cards works."""

import re
import shlex
from contextlib import chdir
from importlib.util import find_spec
from pathlib import Path

import pytest
import run
from huggingface_hub import ModelCard

from vaswani_transformer import cli
from vaswani_transformer.hub import card as model_card
from vaswani_transformer.parsing.vocabulary import learn_vocabulary

ROOT = Path(__file__).parents[2]
FOLDERS = ("vaswani_transformer", "scripts", "tests", "model_cards")
READMES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "vaswani_transformer/translation/you_know.md",
    *(path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("README.md"))),
]
CARDS = sorted({*(ROOT / "model_cards").rglob("*.md")} - {ROOT / "model_cards/README.md"})
TEXTS = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (*READMES, model_card.TEMPLATE, *CARDS)
}
FILES = {path.name for folder in FOLDERS for path in (ROOT / folder).rglob("*.*")}
NAMED_FILE = re.compile(r"`(?:[\w.]+/)*(\w+\.(?:py|sh|html))`")
LINK = re.compile(r"\]\((?!https?://)([^)#]+)(?:#[^)]*)?\)")
SETTING = re.compile(r"[A-Z_]+=")  # an environment variable before a command


def blocks(language):
    return [
        pytest.param(block, id=f"{name} {number}")
        for name, text in TEXTS.items()
        for number, block in enumerate(re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL), start=1)
    ]


@pytest.fixture(scope="module")
def models_folder(build_translator, tmp_path_factory):
    """Return a folder with every model that a document names. Models that are not in the repository are untrained."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "model_cards").mkdir()

    def place(name):
        if name.startswith("model_cards/") and (ROOT / name / "model.safetensors").exists():
            (folder / name).symlink_to(ROOT / name)
        else:
            model.save_pretrained(folder / name)
            tokenizer.save_pretrained(folder / name)

    model, tokenizer = build_translator(["the dog runs ."] * 3)
    named = re.findall(r'(?:model=|from_pretrained\(|load_translator\()"([^"]+)"', "\n".join(TEXTS.values()))
    for name in {name.replace("$model_id", "OWNER/NAME") for name in named}:
        place(name)
    trees = [("The dog barks .", "(S (NP XX XX )NP (VP XX )VP XX )S")]
    tokenizer = learn_vocabulary(trees, vocab_size=290)
    model.resize_token_embeddings(len(tokenizer))
    for name in set(re.findall(r'load_parser\("([^"]+)"', "\n".join(TEXTS.values()))):
        place(name)
    return folder


@pytest.mark.parametrize("block", blocks("python"))
def test_every_python_block_runs(block, models_folder, capsys, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with chdir(models_folder):
        exec(compile(block.replace("$model_id", "OWNER/NAME"), "block", "exec"), {})
    assert capsys.readouterr().out


def test_the_first_block_of_the_readme_prints_the_output_shown_below_it(bundled_model, capsys):
    code, output = re.search(r"```python\n(.*?)```\n\n```\n(.*?)```", TEXTS["README.md"], re.DOTALL).groups()
    with chdir(bundled_model.parents[1]):
        exec(compile(code, "block", "exec"), {})
    assert capsys.readouterr().out == output


@pytest.mark.parametrize("block", blocks("bash"))
def test_every_command_of_a_shell_block_exists(block):
    for line in re.split(r"\n| [|] ", block.replace("\\\n", " ")):
        line = re.sub(r".* -m vaswani_transformer ", "vaswani ", line)  # a launcher, such as torchrun
        words = shlex.split(re.split(r" [<>] ", line)[0], comments=True)
        while words and SETTING.match(words[0]):
            del words[0]
        match words:
            case [] | ["pip" | "opus/bin/pip", "install", _] | ["hf", "upload", _, _]:
                pass
            case ["git", "clone", *_] | ["python3", "-m", "venv", *_] | ["sed" | "echo" | "paste", *_]:
                pass
            case ["pip", "install", "-c", constraints, "-e", extra]:
                assert (ROOT / constraints).exists()
                assert f'"{extra[2:-1]}": ' in (ROOT / "setup.py").read_text()
            case ["vaswani", *arguments]:
                assert cli.build_parser().parse_args(arguments).command == arguments[0]
            case ["sbatch", script, *arguments] | ["python", script, "--workers", _, *arguments]:
                assert (ROOT / script).exists()
                assert cli.build_parser().parse_args(["train", *arguments])
            case ["python", "scripts/run.py", *arguments]:
                assert run.main([*arguments, "--dry_run"]) == 0
            case ["python", "-m", module, *_]:
                assert find_spec(module)
            case ["jupyter", "execute" | "nbclassic" | "nbconvert", *_, notebook]:
                assert (ROOT / notebook).exists()
            case ["bash", script, *_]:
                assert (ROOT / script).exists()
            case ["python", script, *arguments]:
                sources = "".join((ROOT / name).read_text() for name in (script, "scripts/benchmark_common.py"))
                assert [word for word in arguments if word.startswith("--") and f'"{word}"' not in sources] == []
            case _:
                pytest.fail(f"no test knows how to check {words}")


@pytest.mark.parametrize("path", sorted({*READMES, *CARDS}), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_link_to_a_file_leads_to_a_file(path):
    missing = [link for link in LINK.findall(path.read_text(encoding="utf-8")) if not (path.parent / link).exists()]
    assert not missing


@pytest.mark.parametrize("name", TEXTS)
def test_every_file_of_code_that_a_document_names_exists(name):
    assert set(NAMED_FILE.findall(TEXTS[name])) <= FILES


@pytest.mark.parametrize("path", CARDS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_model_cards_have_the_headings_of_the_template_and_valid_metadata(path):
    text = path.read_text(encoding="utf-8")
    assert ModelCard(text).data.license
    headings = re.findall(r"^## .*$", text, re.MULTILINE)
    assert headings == re.findall(r"^## .*$", model_card.TEMPLATE.read_text(encoding="utf-8"), re.MULTILINE)
