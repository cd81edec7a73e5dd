"""Model cards: the facts, scores and metadata that they hold."""

import json
import re
from operator import attrgetter

import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import save_file
from shortcuts import change_json, vaswani, write_lines
from tiny_training import DESCRIPTION

from vaswani_transformer.hub import card as card_module
from vaswani_transformer.hub.card import build_card, read_scores
from vaswani_transformer.loading import fingerprint_model

SIGNATURE = "nrefs:1|case:mixed|eff:no|tok:none|smooth:exp|version:2.6.0"
SEARCH = "num_beams:5|length_penalty:1.4|length_penalty_type:gnmt|dtype:bfloat16"
# The output of `vaswani evaluate --json`, without the fingerprint.
FIGURES = {
    "scores": [
        {"name": "BLEU", "value": 40.5699, "signature": SIGNATURE},
        {"name": "chrF2", "value": 64.1, "signature": "nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:2.6.0"},
        {"name": "perplexity", "value": 5.0031, "signature": "per sub-word, no label smoothing"},
    ],
    "search": SEARCH,
    "models": ["runs/a"],
}
HOSTILE = "<script>alert(1)</script> | `x` [a](javascript:b)\n---\n# \u202eTitle ![i](http://x) {{ 7*7 }} $metadata"


@pytest.fixture
def run(tmp_path):
    """Return the folder of a finished run, with all files that a card is made from."""
    folder = tmp_path / "my_run"
    model = folder / "model"
    model.mkdir(parents=True)
    (folder / "recipe.json").write_text(json.dumps(DESCRIPTION))
    lines = [
        {"update": 50, "loss": 9.1, "target_tokens": 180_000, "seconds": 1800.0},
        {"update": 58, "dev_perplexity": 700.0},
        {"update": 100, "loss": None, "target_tokens": 180_000, "seconds": 5400.0},
        {"update": 116, "dev_perplexity": 5.25},
    ]
    write_lines(folder / "log.jsonl", map(json.dumps, lines))
    (model / "config.json").write_text('{"custom_pipelines": {"translation": {}, "translation_en_to_de": {}}}')
    (model / "tokenizer.json").write_text("{}")
    save_file({"weight": torch.ones(2)}, model / "model.safetensors")
    return folder


@pytest.fixture
def score(run, tmp_path):
    """Return the path of a file with the scores of the run's model."""
    path = tmp_path / "test.json"
    path.write_text(json.dumps(FIGURES | {"fingerprint": fingerprint_model(run / "model")}))
    return path


def test_the_card_holds_the_facts_of_the_run_folder_and_the_scores(run, score):
    evaluations = [read_scores("Multi30k test_2016_flickr", score)]
    facts = {"data": "29,000 captions", "dataset": "me/multi30k", "license": "apache-2.0", "hardware": "two cores"}
    card = build_card(run, evaluations=evaluations, **facts)
    for fact in (
        "# my_run",
        "2,598,912 parameters, from en to de, trained on 29,000 captions",
        "`multi30k_tiny` of `vaswani_transformer`, seed 3; updates: 116 done, 8,000 planned",
        "| `tokens_per_batch` | `8192` |",
        "Devices: two cores; processes: 2; mixed precision: no. ",
        "1.50 hours of training in total, 3.00 device hours",
        "target tokens, so ",
        "torch 2.13.0+cpu",
        "| Multi30k test_2016_flickr | BLEU | 40.57 | `nrefs:1\\|case:mixed\\|eff:no\\|tok:none\\|",
        "| Multi30k test_2016_flickr | perplexity | 5.003 | `per sub-word, no label smoothing` |",
        "| Multi30k test_2016_flickr | chrF2 | 64.10 |",
        "`num_beams:5\\|length_penalty:1.4\\|length_penalty_type:gnmt\\|dtype:bfloat16` |",
        f"Fingerprint of the scored model: `{fingerprint_model(run / 'model')}`.",
        'model="OWNER/NAME"',
        "after update 116 and before checkpoints were averaged: 5.250",
        "\nmore than 256 sub-words",
        "Licence of the weights: apache-2.0.",
    ):
        assert fact in card, fact


def test_the_metadata_lists_the_scores_of_each_test_set(run, score):
    evaluations = [read_scores(name, score) for name in ("Multi30k test", "newstest2014")]
    data = ModelCard(build_card(run, evaluations=evaluations, dataset="me/multi30k", license="mit")).data
    assert (data.language, data.license, data.datasets) == (["en", "de"], "mit", ["me/multi30k"])
    assert (data.library_name, data.pipeline_tag) == ("transformers", "translation")
    assert data.metrics == ["bleu", "chrf", "perplexity"]
    fields = attrgetter("dataset_type", "dataset_name", "metric_type", "metric_value")
    values = {"bleu": 40.57, "chrf": 64.1, "perplexity": 5.003}
    assert list(map(fields, data.eval_results)) == [
        (test_set.lower().replace(" ", "-"), test_set, metric, value)
        for test_set in ("Multi30k test", "newstest2014")
        for metric, value in values.items()
    ]
    result = data.eval_results[0]
    assert (result.task_type, result.metric_name) == ("translation", "BLEU")
    assert result.metric_args == {"signature": SIGNATURE, "search": SEARCH, "model": fingerprint_model(run / "model")}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scores": None}, r"test\.json was not written by this version"),
        ({"scores": [FIGURES["scores"][0] | {"value": None}]}, r"test\.json was not written by this version"),
        (
            {"fingerprint": "01 + 02"},
            "of newstest2014 belong to a model with fingerprint 01 \\+ 02, but the model of .*_run has",
        ),
    ],
)
def test_damaged_scores_and_scores_of_another_model_are_refused(run, score, change, message):
    change_json(score, **change)
    with pytest.raises(ValueError, match=message):
        build_card(run, evaluations=[read_scores("newstest2014", score)])


def test_the_task_decides_the_template_and_the_languages_of_the_card(run):
    path = run / "model" / "config.json"
    path.write_text(path.read_text().replace("en_to_de", "en-US_to_zh_CN"))
    card = build_card(run)
    assert "from en-US to zh_CN" in card
    assert ModelCard(card).data.language is None
    path.write_text(path.read_text().replace("en-US_to_zh_CN", "en_to_trees"))
    card = build_card(run)
    assert "vaswani parse --model OWNER/NAME" in card
    assert "A dog runs" not in card
    data = ModelCard(card).data
    assert (data.language, data.pipeline_tag) == (["en"], None)
    path.write_text("{}")
    assert "from the source to the target language" in build_card(run)


def test_the_card_of_an_unfinished_run_describes_its_newest_checkpoint(run, capsys):
    (run / "checkpoints").mkdir()
    checkpoint = (run / "model").rename(run / "checkpoints" / "step-00000058")
    (checkpoint / "COMPLETE").write_text('{"files": {}}')
    card = build_card(run)
    assert "seed 3; updates: 58 done, 8,000 planned" in card
    assert "after update 58 and before checkpoints were averaged: 700.000" in card
    vaswani(f"card --run {run}", status=1)
    assert "is a checkpoint, not the final model" in capsys.readouterr().err


def test_the_card_says_which_facts_are_unknown(run):
    card = build_card(run)
    gaps = (
        "data that the author of this card has not named",
        "Devices: not written down",
        "No test set has been scored",
        "ask before",
    )
    assert [gap for gap in gaps if gap not in card] == []
    data = ModelCard(card).data
    assert (data.license, data.eval_results) == ("unknown", None)


def test_hostile_fields_add_neither_html_nor_links_nor_table_rows_to_the_card(run, score):
    text = dict.fromkeys(("mixed_precision", "device", "init_from", "init_fingerprint"), HOSTILE)
    text["recipe"] = DESCRIPTION["recipe"] | {"max_length": HOSTILE, HOSTILE: HOSTILE}
    text["versions"] = {HOSTILE: HOSTILE}
    change_json(run / "recipe.json", **text)
    scores = [figures | {"name": f"chrF {HOSTILE}", "signature": HOSTILE} for figures in FIGURES["scores"]]
    change_json(score, scores=scores, search=HOSTILE)
    card = ModelCard(build_card(run, evaluations=[read_scores(HOSTILE, score)])).text
    assert all(character.isprintable() or character == "\n" for character in card)
    prose = re.sub("`[^`\n]*`", "", re.sub(r"\\.", "", card))
    assert re.findall(r"<|\]\(|!\[|^---|^# (?!my_run)", prose, re.MULTILINE) == []
    for table in re.findall(r"(?:^\|.*\n)+", card, re.MULTILINE):
        rows = re.sub(r"\\\|", "", table).splitlines()
        assert {row.count("|") for row in rows} == {rows[0].count("|")}


@pytest.mark.parametrize("init_from", ["folder", "me/base"])
def test_a_card_names_the_base_model_and_its_licence_unless_another_is_given(run, tmp_path, monkeypatch, init_from):
    folder = tmp_path / "everyday"
    folder.mkdir()
    (folder / "README.md").write_text("---\nlicense: cc-by-4.0\n---\n")
    monkeypatch.setattr(card_module, "try_to_load_from_cache", lambda name, _: "path" if name == "me/base" else None)
    monkeypatch.setattr(card_module, "hf_hub_download", lambda name, file: folder / file)
    base = {"folder": folder}.get(init_from, init_from)
    for init, given, expected in ((base, "", "cc-by-4.0"), (base, "mit", "mit"), ("me/gone", "", "unknown")):
        change_json(run / "recipe.json", init_from=str(init), init_fingerprint=5)
        data = ModelCard(build_card(run, license=given)).data
        name = {folder: "everyday", "me/base": "me/base"}.get(init)
        assert (data.base_model, data.license) == (name, expected)


@pytest.mark.parametrize(
    ("init_from", "name"),
    [("me/a", "me/a"), *((name, "a") for name in ("/home/me/a", "../me/a/", "x/me/a", "file:///home/me/a", "~/a"))],
)
def test_the_card_names_the_initial_weights_and_says_that_a_changed_recipe_has_no_name(run, init_from, name):
    assert "Training began with" not in build_card(run)
    recipe = DESCRIPTION["recipe"] | {"warmup_updates": 7}
    change_json(run / "recipe.json", recipe=recipe, init_from=init_from, init_fingerprint=5)
    card = build_card(run)
    assert f"Training began with the weights of `{name}`, fingerprint `5`.\n" in card
    assert "No named recipe of `vaswani_transformer`, seed 3" in card


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("recipe.json", None, r"recipe\.json"),
        ("model/config.json", None, r"config\.json"),
        ("recipe.json", "{}", r"was not written by this version of the package.*KeyError"),
        ("recipe.json", json.dumps(DESCRIPTION | {"recipe": {}}), r"recipe\.json was not written by this version"),
        ("log.jsonl", "", r"log\.jsonl has no line of training yet"),
    ],
)
def test_the_error_about_a_damaged_run_folder_names_the_file(run, name, content, message):
    (run / name).unlink()
    if content is not None:
        (run / name).write_text(content)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        build_card(run)


def test_the_command_replaces_an_existing_card_only_if_output_names_this_card(run, score, capsys):
    path = run / "model" / "README.md"
    command = f"card --run {run} --license mit"
    vaswani(f"{command} --score Multi30k", score)
    assert capsys.readouterr().out == f"{path}\n"
    card = path.read_text()
    for fact in ("# my_run\n", "| 40.57 |", "\nlicense: mit\n"):
        assert fact in card
    vaswani(command, status=1)
    assert "README.md exists and may have been edited: to replace it, name it by --output" in capsys.readouterr().err
    assert path.read_text() == card
    vaswani(f"{command} --output {run}/recipe.json", status=1)
    assert "recipe.json is another input or output of this command" in capsys.readouterr().err
    path.write_text("edited")
    vaswani(f"{command} --output {path}")
    assert "# my_run" in path.read_text()
