"""Write a model card from a run folder: a description of the model, its training and its scores.

    text = build_card(Path("runs/base"), evaluations=[read_scores("WMT 2014 newstest2014", Path("newstest2014.json"))])

The numbers come from the files that `vaswani train` and `vaswani evaluate` wrote. The card says which facts are
missing. You may edit its text.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template

from huggingface_hub import EvalResult, ModelCardData

from ..evaluation.metrics import BLEU, CHRF, LOWER_CASED, PAPER, PERPLEXITY, TOKENISED, Score
from ..files import blaming, read_object
from ..loading import find_languages, fingerprint_model
from ..runs import RECIPE_FILE, find_model, read_description, read_update
from ..training.cost import RunCost
from ..training.log import read_log
from ..training.recipes import OF_DATA, RECIPES

TEMPLATE = Path(__file__).with_name("card_template.md")
PARSER_TEMPLATE = Path(__file__).with_name("parser_card_template.md")
MODEL_ID = "OWNER/NAME"  # The upload replaces it by the model's name on the Hub.
# The metrics of `vaswani evaluate`, with their names on the Hub.
METRICS = {**dict.fromkeys((BLEU, LOWER_CASED, PAPER, TOKENISED), "bleu"), CHRF: "chrf", PERPLEXITY: "perplexity"}
LANGUAGE = re.compile(r"[a-z]{2,3}")
TREES = "trees"  # The target language of data from `vaswani prepare --task parsing`.
NO_LICENCE = "No licence of the weights or of the training data is stated: ask before you share or sell."


@dataclass(frozen=True)
class Evaluation:
    """The scores of a model on a test set, with the facts that are needed to reproduce them.

    Attributes:
        test_set: the name of the test set.
        scores: the scores, with names that are keys of `METRICS`.
        search: the settings of the search, in one line.
        fingerprint: the fingerprint of the model, from `loading.fingerprint_model`.
    """

    test_set: str
    scores: list[Score]
    search: str
    fingerprint: str


@dataclass(frozen=True)
class Run:
    """A run, as its folder describes it.

    Attributes:
        model: the folder of the model that the card describes.
        cost: the cost of training.
        recipe: the fields of the recipe.
        versions: the versions of the libraries.
        updates: the number of updates that the model has had.
        planned_updates: the number of updates in the recipe.
        dev: the update of the last evaluation, and the perplexity of the development set at this update. `None` if
            there was no evaluation.
        device: the kind of device; empty if it is unknown.
        init: the name and the fingerprint of the model with whose weights training began. `None` if training began with
            random weights.
        languages: source and target, as given to `vaswani prepare`. The target is `TREES` if the model parses.
    """

    model: Path
    cost: RunCost
    recipe: dict
    versions: dict
    updates: int
    planned_updates: int
    dev: tuple[int, float] | None
    device: str
    init: tuple[str, str] | None
    languages: tuple[str, str] | None

    @property
    def is_parser(self) -> bool:
        return self.languages is not None and self.languages[1] == TREES


@dataclass(frozen=True, kw_only=True)
class CardText:
    """Facts for the card that a run folder does not hold. A missing fact is an empty string.

    Attributes:
        data: a description of the training data.
        dataset: the name of the training data on the Hub, for the metadata.
        license: the identifier of the weights' licence on the Hub, such as apache-2.0.
        hardware: the devices on which the model was trained.
    """

    data: str = ""
    dataset: str = ""
    license: str = ""
    hardware: str = ""


def read_scores(test_set: str, path: Path) -> Evaluation:
    """Read the scores of `test_set` from a file of `vaswani evaluate --json`.

    Raises:
        FileNotFoundError: if the file does not exist.
        ValueError: if the file was not written by `vaswani evaluate --json`.
    """
    figures = read_object(path)
    with blaming(path):
        scores = [
            Score(str(entry["name"]), float(entry["value"]), str(entry["signature"])) for entry in figures["scores"]
        ]
        if unknown := {score.name for score in scores} - METRICS.keys():
            raise ValueError(f"unknown score {', '.join(sorted(unknown))}")
        return Evaluation(test_set, scores, str(figures["search"]), str(figures["fingerprint"]))


def read_run(folder: Path, model: Path | None = None) -> Run:
    """Read the recipe, the log and the languages of a run.

    Args:
        folder: the run folder.
        model: the folder of a model of this run. The log is read up to the update of this model. The default is the
            newest model.

    Raises:
        FileNotFoundError: if a file is missing.
        ValueError: if a file is damaged, or if the log has no line of training.
    """
    cost = RunCost.read(folder)
    log = read_log(folder)
    description = read_description(folder)
    model = model or find_model(folder)
    config = read_object(model / "config.json")
    update = read_update(model)
    log = [line for line in log if update is None or line["update"] <= update]
    dev = [(line["update"], line["dev_perplexity"]) for line in log if line.get("dev_perplexity") is not None]
    with blaming(folder / RECIPE_FILE):
        origin = str(description["init_from"]), str(description["init_fingerprint"])
        return Run(
            model=model,
            cost=cost,
            recipe=dict(description["recipe"]),
            versions=dict(description["versions"]),
            updates=update or max(line["update"] for line in log),
            planned_updates=int(description["recipe"]["num_updates"]),
            dev=dev[-1] if dev else None,
            device=str(description.get("device", "")),
            init=origin if description["init_from"] else None,
            languages=find_languages(config),
        )


def build_card(
    folder: Path, model: Path | None = None, *, evaluations: Sequence[Evaluation] = (), text: CardText | None = None
) -> str:
    """Return the text of the card of a run.

    Args:
        folder, model: see `read_run`.
        evaluations: the scores to write into the card.
        text: further facts.

    Raises:
        FileNotFoundError: see `read_run`.
        ValueError: see `read_run`. This error is also raised if the scores belong to another model.
    """
    run = read_run(folder, model)
    text = text or CardText()
    for evaluation in evaluations:
        if evaluation.fingerprint != (fingerprint := fingerprint_model(run.model)):
            raise ValueError(
                f"the scores of {evaluation.test_set} belong to a model with fingerprint {evaluation.fingerprint}, but "
                f"the model of {folder} has fingerprint {fingerprint}: evaluate this model again."
            )
    name = plain(folder.resolve().name)
    source, target = run.languages or ("the source", "the target language")
    data = f"trained on {text.data}" if text.data else "trained on data its author has not named"
    values = {
        "metadata": _metadata(run, evaluations, text, name=name),
        "name": name,
        "summary": (
            f'The Transformer of "Attention Is All You Need" with {run.cost.num_parameters:,} parameters, '
            f"from {source} to {target}, {data}."
        ),
        "model_id": MODEL_ID,
        "source": source,
        "target": target,
        "recipe": _recipe(run),
        "cost": _cost(run, text),
        "scores": _scores(run, evaluations),
        "max_length": plain(run.recipe.get("max_length", "?")),
        "licence": f"Licence of the weights: {text.license}." if text.license else NO_LICENCE,
    }
    template = PARSER_TEMPLATE if run.is_parser else TEMPLATE
    return Template(template.read_text(encoding="utf-8")).substitute(values)


def _metadata(run: Run, evaluations: Sequence[Evaluation], text: CardText, *, name: str) -> str:
    results = [
        EvalResult(
            task_type="translation",
            dataset_type=re.sub(r"\W+", "-", evaluation.test_set.lower()).strip("-"),
            dataset_name=evaluation.test_set,
            metric_type=METRICS[score.name],
            metric_name=score.name,
            metric_value=float(_format(score)),
            metric_args={"signature": score.signature, "search": evaluation.search, "model": evaluation.fingerprint},
        )
        for evaluation in evaluations
        for score in evaluation.scores
    ]
    data = ModelCardData(
        language=[name for name in run.languages or () if LANGUAGE.fullmatch(name)] or None,
        license=text.license or "unknown",
        library_name="transformers",
        pipeline_tag=None if run.is_parser else "translation",
        tags=["vaswani_transformer", "attention-is-all-you-need"],
        datasets=[text.dataset] if text.dataset else None,
        metrics=sorted({result.metric_type for result in results}) or None,
        model_name=name if results else None,
        eval_results=results or None,
    )
    return data.to_yaml()


def _recipe(run: Run) -> str:
    names = [name for name, recipe in RECIPES.items() if _is_same_recipe(recipe.to_dict(), run.recipe)]
    named = f"`{names[0]}` of `vaswani_transformer`" if names else "No named recipe of `vaswani_transformer`"
    lines = [f"{named}, seed {run.cost.seed}; updates: {run.updates:,} done, {run.planned_updates:,} planned."]
    if run.init:
        name, fingerprint = run.init
        name = Path(name).name if Path(name).is_absolute() else name  # The card must not show local folders.
        lines.append(f"Training began with the weights of {code(name)}, fingerprint {code(fingerprint)}.")
    lines += ["", "| setting | value |", "|---|---|"]
    for name, value in run.recipe.items():
        lines.append(f"| {code(name)} | {code(json.dumps(value, ensure_ascii=False))} |")
    return "\n".join(lines)


def _is_same_recipe(ours: dict, theirs: dict) -> bool:
    """Return True if two recipes differ only in when training ends, or in fields that the corpus or device decides."""
    ignored_fields = dict.fromkeys((*OF_DATA, "compile", "num_updates", "patience"))
    return json.loads(json.dumps(ours | ignored_fields)) == theirs | ignored_fields


def _cost(run: Run, text: CardText) -> str:
    cost = run.cost
    hours = cost.seconds / 3600
    versions = plain(", ".join(f"{name} {version}" for name, version in run.versions.items()))
    return (
        f"Devices: {text.hardware or plain(run.device) or 'not written down'}; processes: {cost.num_processes}; "
        f"mixed precision: {plain(cost.mixed_precision)}. "
        f"{hours:.2f} hours of training in total, {hours * cost.num_processes:.2f} device hours; "
        f"{cost.target_tokens:,.0f} target tokens, so {cost.weight_flop:.1e} FLOP by 6 x parameters x "
        f"tokens.\n\nVersions: {versions}."
    )


def _format(score: Score) -> str:
    return f"{score.value:.3f}" if score.name == PERPLEXITY else f"{score.value:.2f}"


def _scores(run: Run, evaluations: Sequence[Evaluation]) -> str:
    lines = []
    for evaluation in evaluations:
        for score in evaluation.scores:
            names = f"{plain(evaluation.test_set)} | {score.name}"
            lines.append(f"| {names} | {_format(score)} | {code(score.signature)} | {code(evaluation.search)} |")
    if lines:
        lines = ["| test set | metric | score | signature | search |", "|---|---|---|---|---|", *lines]
        lines += ["", f"Fingerprint of the scored model: {code(evaluations[0].fingerprint)}."]
    elif not run.is_parser:
        lines.append(
            "No test set has been scored. To score one: `vaswani evaluate --model RUN --test SOURCE REFERENCE --json "
            "scores.json`, then `vaswani card --run RUN --score NAME scores.json --output CARD`."
        )
    if run.dev is not None:
        update, perplexity = run.dev
        lines += [
            "",
            f"Perplexity of the development set per sub-word, after update {update:,} and before checkpoints were "
            f"averaged: {perplexity:.3f}.",
        ]
    return "\n".join(lines)


def plain(value: object) -> str:
    """Return `value` escaped for Markdown: it shows no HTML, links, code or invisible characters."""
    return re.sub(r"[\\`<>\[\]|&]", r"\\\g<0>", _visible(str(value)))


def code(text: str) -> str:
    """Return `text` as code for a cell of a Markdown table."""
    return "`{}`".format(_visible(text).replace("`", "'").replace("|", "\\|"))


def _visible(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)
