"""Write a model card from a run folder: a description of the model, its training and its scores.

    text = build_card(Path("runs/base"), evaluations=[read_scores("WMT 2014 newstest2014", Path("newstest2014.json"))])

The numbers come from the files that `vaswani train` and `vaswani evaluate` wrote. The card says which facts are
missing. You may edit its text.
"""

import contextlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from string import Template
from typing import NamedTuple

from huggingface_hub import EvalResult, ModelCard, ModelCardData, hf_hub_download, try_to_load_from_cache

from ..data.preparation import TREES
from ..evaluation.metrics import PERPLEXITY, Score
from ..files import blaming, read_object
from ..loading import find_languages, fingerprint_model
from ..runs import CARD_FILE, RECIPE_FILE, find_model, find_model_folder, read_description, read_update
from ..training.cost import RunCost
from ..training.log import read_log
from ..training.recipes import OF_DATA, RECIPES

TEMPLATE = Path(__file__).with_name("card_template.md")
MODEL_ID = "OWNER/NAME"  # The upload replaces it by the model's name on the Hub.
NO_LICENCE = "No licence of the weights or of the training data is stated: ask before you share or sell."


class Evaluation(NamedTuple):
    """The scores of a model on a test set, with the facts that are needed to reproduce them.

    Attributes:
        test_set: the name of the test set.
        scores: the scores. The first word of the name of a score is the metric.
        search: the settings of the search, in one line.
        fingerprint: the fingerprint of the model, from `loading.fingerprint_model`.
    """

    test_set: str
    scores: list[Score]
    search: str
    fingerprint: str


def read_scores(test_set: str, path: Path) -> Evaluation:
    """Return the scores of `test_set` in a file of `vaswani evaluate --json`.

    Raises:
        FileNotFoundError: if the file does not exist.
        ValueError: if the file was not written by `vaswani evaluate --json`.
    """
    figures = read_object(path)
    with blaming(path):
        scores = [
            Score(str(entry["name"]), float(entry["value"]), str(entry["signature"])) for entry in figures["scores"]
        ]
        return Evaluation(test_set, scores, str(figures["search"]), str(figures["fingerprint"]))


def build_card(
    folder: Path,
    model: Path | None = None,
    *,
    evaluations: Sequence[Evaluation] = (),
    data: str = "",
    dataset: str = "",
    license: str = "",
    hardware: str = "",
) -> str:
    """Return the text of the card of a run.

    The last four arguments are facts that a run folder does not hold. A missing fact is an empty string.

    Args:
        folder: the run folder.
        model: the folder of a model of this run. The log is read up to the update of this model. The default is the
            newest model.
        evaluations: the scores to write into the card.
        data: a description of the training data.
        dataset: the name of the training data on the Hub, for the metadata.
        license: the identifier of the weights' licence on the Hub, such as apache-2.0.
        hardware: the devices on which the model was trained.

    Raises:
        FileNotFoundError: if a file of the run is missing.
        ValueError: if a file of the run is damaged, if the log has no line of training, or if the scores belong to
            another model.
    """
    cost = RunCost.read(folder)
    description = read_description(folder)
    model = model or find_model(folder)
    for evaluation in evaluations:
        if evaluation.fingerprint != (fingerprint := fingerprint_model(model)):
            raise ValueError(
                f"the scores of {evaluation.test_set} belong to a model with fingerprint {evaluation.fingerprint}, but "
                f"the model of {folder} has fingerprint {fingerprint}: evaluate this model again."
            )
    languages = find_languages(read_object(model / "config.json")) or ("the source", "the target language")
    source, target = languages
    is_parser = target == TREES
    update = read_update(model)
    log = [line for line in read_log(folder) if update is None or line["update"] <= update]
    name = plain(folder.resolve().name)
    results = [_build_result(evaluation, score) for evaluation in evaluations for score in evaluation.scores]
    base, base_licence = _find_base(description.get("init_from"))
    license = license or base_licence
    metadata = ModelCardData(
        base_model=base,
        language=[language for language in languages if re.fullmatch("[a-z]{2,3}", language)] or None,
        license=license or "unknown",
        library_name="transformers",
        pipeline_tag=None if is_parser else "translation",
        tags=["vaswani_transformer", "attention-is-all-you-need"],
        datasets=[dataset] if dataset else None,
        metrics=sorted({result.metric_type for result in results}) or None,
        model_name=name if results else None,
        eval_results=results or None,
    )
    with blaming(folder / RECIPE_FILE):
        training = {
            "recipe": _recipe(description, update or max(line["update"] for line in log)),
            "cost": _cost(cost, description, hardware),
            "max_length": plain(description["recipe"]["max_length"]),
        }
    template = TEMPLATE.with_name("parser_card_template.md") if is_parser else TEMPLATE
    return Template(template.read_text(encoding="utf-8")).substitute(
        metadata=metadata.to_yaml(),
        name=name,
        summary=(
            f'The Transformer of "Attention Is All You Need" with {cost.num_parameters:,} parameters, from {source} to '
            f"{target}, trained on {data or 'data that the author of this card has not named'}."
        ),
        model_id=MODEL_ID,
        source=source,
        target=target,
        scores=_scores(evaluations, log, is_parser=is_parser),
        licence=f"Licence of the weights: {plain(license)}." if license else NO_LICENCE,
        **training,
    )


def _find_base(name: str | None) -> tuple[str | None, str]:
    """Return the name of the model that training began with, and the licence in its card; None and "" if unknown.

    A `name` that is no folder is a Hub id only if its model is in the cache. Otherwise it is a folder that is gone.
    """
    base, licence = None, ""
    with contextlib.suppress(OSError, ValueError):  # The model is gone, has no card, or the Hub does not answer.
        if name and Path(name).is_dir():
            base = Path(name).resolve().name  # The card must not show local folders.
            card = find_model_folder(Path(name)) / CARD_FILE
        elif name and try_to_load_from_cache(name, "config.json"):
            base = name
            card = hf_hub_download(name, CARD_FILE)
        if base:
            licence = ModelCard(Path(card).read_text(encoding="utf-8")).data.license
    return base, "" if licence in (None, "unknown") else licence


def _build_result(evaluation: Evaluation, score: Score) -> EvalResult:
    return EvalResult(
        task_type="translation",
        dataset_type=re.sub(r"\W+", "-", evaluation.test_set.lower()).strip("-"),
        dataset_name=evaluation.test_set,
        # "BLEU, tokenised" is bleu on the Hub, and chrF2 is chrf.
        metric_type=re.match("[A-Za-z]*", score.name)[0].lower(),
        metric_name=score.name,
        metric_value=float(_format(score)),
        metric_args={"signature": score.signature, "search": evaluation.search, "model": evaluation.fingerprint},
    )


def _recipe(description: dict, updates: int) -> str:
    fields = description["recipe"]
    names = [name for name, recipe in RECIPES.items() if _is_same_recipe(recipe.to_dict(), fields)]
    named = f"`{names[0]}` of `vaswani_transformer`" if names else "No named recipe of `vaswani_transformer`"
    lines = [f"{named}, seed {description['seed']}; updates: {updates:,} done, {fields['num_updates']:,} planned."]
    if name := description["init_from"]:
        # The card must not show local folders. A name on the Hub is shown whole.
        if not re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", name) or Path(name).exists():
            name = re.split(r"[\\/]", name.rstrip("\\/"))[-1]
        fingerprint = code(str(description["init_fingerprint"]))
        lines.append(f"Training began with the weights of {code(name)}, fingerprint {fingerprint}.")
    lines += ["", "| setting | value |", "|---|---|"]
    for name, value in fields.items():
        lines.append(f"| {code(name)} | {code(json.dumps(value, ensure_ascii=False))} |")
    return "\n".join(lines)


def _is_same_recipe(ours: dict, theirs: dict) -> bool:
    """Return True if two recipes are equal, apart from the end of training and fields that corpus or device decide."""
    ignored_fields = dict.fromkeys((*OF_DATA, "compile", "num_updates", "patience"))
    return json.loads(json.dumps(ours | ignored_fields)) == theirs | ignored_fields


def _cost(cost: RunCost, description: dict, hardware: str) -> str:
    hours = cost.seconds / 3600
    versions = plain(", ".join(f"{name} {version}" for name, version in description["versions"].items()))
    return (
        f"Devices: {hardware or plain(description.get('device') or 'not written down')}; processes: "
        f"{cost.num_processes}; mixed precision: {plain(cost.mixed_precision)}. "
        f"{hours:.2f} hours of training in total, {hours * cost.num_processes:.2f} device hours; "
        f"{cost.target_tokens:,.0f} target tokens, so {cost.weight_flop:.1e} FLOP by 6 x parameters x "
        f"tokens.\n\nVersions: {versions}."
    )


def _format(score: Score) -> str:
    return f"{score.value:.3f}" if score.name == PERPLEXITY else f"{score.value:.2f}"


def _scores(evaluations: Sequence[Evaluation], log: Sequence[dict], *, is_parser: bool) -> str:
    lines = []
    for evaluation in evaluations:
        for score in evaluation.scores:
            names = f"{plain(evaluation.test_set)} | {plain(score.name)}"
            lines.append(f"| {names} | {_format(score)} | {code(score.signature)} | {code(evaluation.search)} |")
    if lines:
        lines = ["| test set | metric | score | signature | search |", "|---|---|---|---|---|", *lines]
        lines += ["", f"Fingerprint of the scored model: {code(evaluations[0].fingerprint)}."]
    elif not is_parser:
        lines.append(
            "No test set has been scored. To score one: `vaswani evaluate --model RUN --test SOURCE REFERENCE --json "
            "scores.json`, then `vaswani card --run RUN --score NAME scores.json --output CARD`."
        )
    if dev := [line for line in log if line.get("dev_perplexity") is not None]:
        lines += [
            "",
            f"Perplexity of the development set per sub-word, after update {dev[-1]['update']:,} and before "
            f"checkpoints were averaged: {dev[-1]['dev_perplexity']:.3f}.",
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
