import json

import pytest
from huggingface_hub import ModelCard

from vaswani_transformer import cli
from vaswani_transformer.evaluation import scores
from vaswani_transformer.hub.card import METRICS, CardText, Score, build_card, check_card, read_run, read_scores
from vaswani_transformer.loading import fingerprint_model
from vaswani_transformer.training.recipes import RECIPES

SIGNATURE = "nrefs:1|case:mixed|eff:no|tok:none|smooth:exp|version:2.6.0"
# As `vaswani evaluate` printed it, but for the fingerprint.
PRINTED = f"""\
BLEU 40.57  {SIGNATURE}
BLEU, lower-cased 40.61  nrefs:1|case:lc|eff:no|tok:none|smooth:exp|version:2.6.0
BLEU, tokenised, compounds split as in the paper 40.80  nrefs:1|case:mixed|tok:none-split|smooth:none|version:2.6.0
BLEU, tokenised 40.57  nrefs:1|case:mixed|eff:no|tok:none|smooth:none|version:2.6.0
chrF2 64.10  nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:2.6.0
perplexity 5.003 per sub-word, no label smoothing
search num_beams:5|length_penalty:1.4|length_penalty_type:gnmt|shortlist:a list.de  model runs/a  fingerprint {{}}
"""
HOSTILE = "<script>alert(1)</script> | `x` [a](javascript:b)\n---\n# \u202eTitle ![i](http://x) {{ 7*7 }} $metadata"


@pytest.fixture
def run(tmp_path):
    """What a card is made from, of a finished run."""
    folder = tmp_path / "my_run"
    (folder / "model").mkdir(parents=True)
    # As a run writes it, where corpus and device have decided.
    recipe = RECIPES["multi30k_tiny"].to_dict() | {"vocab_size": 9_712, "compile": False, "bucketed": False}
    description = {
        "recipe": recipe,
        "seed": 3,
        "mixed_precision": "no",
        "num_processes": 2,
        "num_parameters": 2_598_912,
        "data": "1f",
        "init_from": None,
        "init_fingerprint": None,
        "versions": {"python": "3.11.7", "torch": "2.13.0+cpu"},
    }
    (folder / "recipe.json").write_text(json.dumps(description))
    lines = [
        {"update": 50, "loss": 9.1, "target_tokens_per_second": 100.0, "seconds": 1800.0},
        {"update": 58, "dev_perplexity": 700.0},
        {"update": 100, "loss": None, "target_tokens_per_second": 300.0, "seconds": 5400.0},
        {"update": 116, "dev_perplexity": 5.25},
    ]
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    config = {"custom_pipelines": {"translation": {}, "translation_en_to_de": {}}}
    (folder / "model" / "config.json").write_text(json.dumps(config))
    (folder / "model" / "tokenizer.json").write_text("{}")
    (folder / "model" / "model.safetensors").write_text("weights")
    return folder


@pytest.fixture
def score(run, tmp_path):
    path = tmp_path / "test.score"
    path.write_text(PRINTED.format(fingerprint_model(run)))
    return path


def test_the_card_says_what_the_run_folder_and_the_scores_say(run, score):
    scores = read_scores("Multi30k test_2016_flickr", score)
    text = CardText(data="29,000 captions", dataset="me/multi30k", license="apache-2.0", hardware="two cores")
    card = build_card(run, scores=scores, text=text)
    for fact in (
        "# my\\_run",
        "2,598,912 parameters, from en to de, trained on 29,000 captions",
        "`multi30k_tiny` of `vaswani_transformer`, seed 3; 116 updates done, 8,000 planned",
        "| `tokens_per_batch` | `8192` |",
        "Devices: two cores; processes: 2; mixed precision: no. ",
        "1.5 hours of training over all sittings, 3.0 device hours",
        "target tokens, so ",
        "torch 2.13.0+cpu",
        "| Multi30k test\\_2016\\_flickr | BLEU | **40.57** | `nrefs:1\\|case:mixed\\|eff:no\\|tok:none\\|",
        "| Multi30k test\\_2016\\_flickr | perplexity | 5.003 | `per sub-word, no label smoothing` |",
        "| Multi30k test\\_2016\\_flickr | chrF2 | **64.10** |",
        "`num_beams:5\\|length_penalty:1.4\\|length_penalty_type:gnmt\\|shortlist:a list.de` |",
        f"Fingerprint of the scored model: `{fingerprint_model(run)}`.",
        'model="OWNER/NAME"',
        "development set at the last checkpoint: 5.250",
        "more than 256 sub-words",
        "Licence of the weights: apache-2.0.",
    ):
        assert fact in card, fact


def test_the_metadata_is_what_the_hub_reads(run, score):
    text = CardText(dataset="me/multi30k", license="mit")
    card = build_card(run, scores=read_scores("Multi30k test", score), text=text)
    data = ModelCard(card).data
    assert (data.language, data.license) == (["en", "de"], "mit")
    assert (data.library_name, data.pipeline_tag) == ("transformers", "translation")
    result = data.eval_results[0]
    assert data.metrics == ["bleu", "chrf", "perplexity"]
    assert (result.dataset_type, result.dataset_name) == ("multi30k-test", "Multi30k test")
    assert result.task_type == "translation"
    assert data.datasets == ["me/multi30k"]
    assert (result.metric_type, result.metric_value) == ("bleu", 40.57)
    assert result.metric_args["signature"] == SIGNATURE
    assert result.metric_args["model"] == fingerprint_model(run)
    assert str(ModelCard(str(ModelCard(card)))) == str(ModelCard(card))


def test_every_name_of_a_score_is_known():
    assert {*scores.build_metrics(), "perplexity"} == METRICS.keys()


def test_each_test_set_keeps_its_own_scores(run, score, tmp_path):
    other = tmp_path / "other.score"
    other.write_text(score.read_text().replace("BLEU 40.57", "BLEU 39.00"))
    found = read_scores("newstest2013", score) + read_scores("newstest2014", other)
    card = build_card(run, scores=found, text=CardText(dataset="wmt/wmt14"))
    results = ModelCard(card).data.eval_results
    assert {(result.dataset_name, result.metric_value) for result in results if result.metric_name == "BLEU"} == {
        ("newstest2013", 40.57),
        ("newstest2014", 39.0),
    }


def test_scores_of_another_model_or_of_several_are_refused(run, score):
    text = score.read_text()
    score.write_text(text.replace(fingerprint_model(run), "0123456789abcdef"))
    message = "scores of Multi30k are of a model of fingerprint 0123456789abcdef, but that of .*my_run is"
    with pytest.raises(ValueError, match=message):
        build_card(run, scores=read_scores("Multi30k", score))
    score.write_text(text.rstrip() + " + 0123456789abcdef\n")
    with pytest.raises(ValueError, match="holds the scores of an ensemble, not of a model"):
        read_scores("Multi30k", score)
    score.write_text(text.replace("chrF2", "chrF"))
    with pytest.raises(ValueError, match=r"test\.score holds 'chrF', expected BLEU, .*Evaluate the model again"):
        read_scores("Multi30k", score)


def set_task(run, task):
    config = {"custom_pipelines": {"translation": {}, task: {}}}
    (run / "model" / "config.json").write_text(json.dumps(config))


def test_a_run_that_parses_has_a_card_of_its_own(run, score):
    set_task(run, "translation_en_to_trees")
    card = build_card(run)
    assert "vaswani parse --model OWNER/NAME" in card
    assert "To parse single sentences of the kind it was trained on, in en, into constituency trees" in card
    assert "bracket F1 of `vaswani parse --gold`" in card
    assert "A dog runs" not in card
    data = ModelCard(card).data
    assert (data.language, data.pipeline_tag) == (["en"], None)
    score.write_text(PRINTED.format(fingerprint_model(run)))
    with pytest.raises(ValueError, match="my_run parses, and these are scores of translations"):
        build_card(run, scores=read_scores("newstest2014", score))


def test_languages_by_other_names_are_left_out_of_the_metadata(run):
    set_task(run, "translation_en-US_to_zh_CN")
    card = build_card(run)
    assert "from en-US to zh_CN" in card
    assert ModelCard(card).data.language is None


def test_what_nobody_wrote_down_is_said_to_be_unknown(run):
    card = build_card(run)
    gaps = ("data its author has not named", "Devices: not written down", "No test set has been scored", "ask before")
    assert [gap for gap in gaps if gap not in card] == []
    data = ModelCard(card).data
    assert (data.license, data.eval_results) == ("unknown", None)


def test_a_named_recipe_is_known_after_corpus_and_device_decided(run):
    assert "`multi30k_tiny` of `vaswani_transformer`, seed 3" in build_card(run)


def test_a_run_of_no_named_recipe_says_so(run):
    description = json.loads((run / "recipe.json").read_text())
    description["recipe"]["warmup_updates"] = 7
    (run / "recipe.json").write_text(json.dumps(description))
    assert "No named recipe of `vaswani_transformer`, seed 3" in build_card(run)


@pytest.mark.parametrize(("init_from", "name"), [("runs/a", "runs/a"), ("/home/me/a", "a")])
def test_a_run_that_began_with_trained_weights_says_so(run, init_from, name):
    description = json.loads((run / "recipe.json").read_text())
    assert "It began with" not in build_card(run)
    (run / "recipe.json").write_text(json.dumps(description | {"init_from": init_from, "init_fingerprint": "0f1e"}))
    assert f"It began with the weights of `{name}`, fingerprint `0f1e`.\n" in build_card(run)


def test_text_stays_text_wherever_it_comes_from(run):
    description = json.loads((run / "recipe.json").read_text())
    description["recipe"][HOSTILE] = HOSTILE
    description["versions"][HOSTILE] = HOSTILE
    description["mixed_precision"] = HOSTILE
    (run / "recipe.json").write_text(json.dumps(description))
    clean = build_card(run, text=CardText(name="a", data="b", license="mit", hardware="c"))
    text = CardText(name=HOSTILE, data=HOSTILE, dataset="me/x", license="mit", hardware=HOSTILE)
    score = Score(HOSTILE, "BLEU", 1.0, HOSTILE, HOSTILE, fingerprint_model(run))
    card = build_card(run, scores=[score], text=text)
    body = ModelCard(card).text
    assert r"\| \`x\` \[a\]" in body
    outside_code = "".join(body.replace("```", "").split("`")[::2])
    assert "<script>" not in outside_code
    assert "&lt;script&gt;" in body
    assert "\u202e" not in body
    assert [line for line in body.split("\n") if line.startswith("#")][1:] == [
        line for line in ModelCard(clean).text.split("\n") if line.startswith("#")
    ][1:]
    assert "](" not in outside_code.replace("\\](", "").replace("\\[", "")
    assert ModelCard(card).data.eval_results[0].dataset_name == HOSTILE
    assert ModelCard(card).data.license == "mit"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("recipe.json", None, r"holds no recipe\.json; name a folder that `vaswani train` has"),
        ("log.jsonl", None, r"holds no log\.jsonl"),
        ("model/config.json", None, r"config\.json does not exist: expected a finished run"),
        ("recipe.json", b"{", r"recipe\.json is damaged: expected a JSON object"),
        ("recipe.json", b"[1]", r"recipe\.json is damaged: expected a JSON object, found list"),
        ("recipe.json", b"\xff", r"recipe\.json is damaged"),
        ("recipe.json", b"[" * 100_000, r"recipe\.json is damaged"),
        ("recipe.json", b"{}", r"was not written by this version of the package.*KeyError 'recipe'"),
        ("recipe.json", b'{"recipe": {"num_updates": []}}', "or is damaged: "),
        ("log.jsonl", b"", r"log\.jsonl tells of no update yet"),
        ("log.jsonl", b'{"update": 1}\n{"upd', r"log\.jsonl, line 2: not JSON"),
        ("log.jsonl", b"3\n", r"log\.jsonl, line 1: expected an object, found b'3'"),
        ("log.jsonl", b'{"update": 1, "seconds": "x"}', r"log\.jsonl, line 1: expected numbers, found seconds 'x'"),
    ],
)
def test_a_damaged_run_folder_is_said(run, name, content, message):
    if content is None:
        (run / name).unlink()
    else:
        (run / name).write_bytes(content)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        read_run(run)


def test_what_is_no_score_is_refused(tmp_path):
    path = tmp_path / "test.score"
    path.write_text("BLEU = 40.57\n")
    with pytest.raises(ValueError, match=r"test\.score does not hold what `vaswani evaluate` prints"):
        read_scores("Multi30k", path)


@pytest.mark.parametrize(
    ("card", "message"),
    [
        ("# A model\n", "a card begins with its metadata"),
        ("---\n- a\n---\n", "the metadata of the card cannot be read: repo card metadata block should be a dict"),
        ("---\na: [\n---\n", "the metadata of the card cannot be read"),
        ("---\nmodel-index:\n- name: a\n  results:\n  - task: {}\n---\n", "cannot be read: .*type"),
        ("---\nlanguage: [en, German]\n---\n", "expected codes of ISO 639 such as en, got 'German'"),
        ("---\nlicense: other\n---\n", "license of the card is other: add license_name"),
    ],
)
def test_metadata_the_hub_would_refuse_is_refused_here(card, message):
    with pytest.raises(ValueError, match=message):
        check_card(card)


def test_a_metric_that_is_no_number_is_refused():
    with pytest.raises(ValueError, match="a metric of the card is a number, got 'high' of 'M'"):
        check_card(
            "---\nmodel-index:\n- name: a\n  results:\n  - task:\n      type: translation\n    dataset:\n"
            "      name: M\n      type: m\n    metrics:\n    - type: bleu\n      value: high\n---\n"
        )


def test_the_command_writes_the_card_beside_the_weights(run, score, capsys):
    command = ["card", "--run", str(run), "--score", "Multi30k", str(score), "--name", "Tiny", "--license", "mit"]
    assert cli.main(command) == 0
    card = (run / "model" / "README.md").read_text()
    assert "# Tiny\n" in card
    assert "**40.57**" in card
    assert capsys.readouterr().out == f"{run / 'model' / 'README.md'}\n"


def test_a_card_that_is_there_is_written_over_only_where_it_is_named(run, capsys):
    path = run / "model" / "README.md"
    path.write_text("mine")
    assert cli.main(["card", "--run", str(run)]) == 1
    assert "README.md exists and may have been edited: remove it, or write over it with" in capsys.readouterr().err
    assert path.read_text() == "mine"
    assert cli.main(["card", "--run", str(run), "--output", str(path)]) == 0
    assert "# my\\_run" in path.read_text()


def test_another_licence_has_its_name(run):
    command = ["card", "--run", str(run), "--license", "other"]
    assert cli.main([*command, "--license_name", "research-only"]) == 0
    card = (run / "model" / "README.md").read_text()
    assert (ModelCard(card).data.license, ModelCard(card).data.license_name) == ("other", "research-only")
    assert "Licence of the weights: research-only." in card
