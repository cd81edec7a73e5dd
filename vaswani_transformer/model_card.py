"""The card of a trained model, filled from its run folder: what it is, how it was made, what it is worth.

    text = build_card(Path("runs/base"), scores=read_scores("WMT 2014 newstest2014", Path("newstest2014.score")))

The numbers are those that training and `vaswani evaluate` wrote down. What nobody wrote down is not guessed: the card
says so, and its text may be edited.
"""

import html
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template

import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from huggingface_hub.repocard import REGEX_YAML_BLOCK

from .evaluation import MODEL_FOLDER
from .recipes import RECIPES
from .training.cost import estimate_target_tokens
from .training.log import LOG_FILE, read_log
from .training.run_folder import RECIPE_FILE

TEMPLATE = Path(__file__).with_name("model_card_template.md")
CARD_FILE = "README.md"
MODEL_ID = "OWNER/NAME"  # where the model's name on the Hub goes when it has one
PERPLEXITY = "perplexity"
TASK = re.compile(r"translation_([a-z]+)_to_([a-z]+)")
LANGUAGE = re.compile(r"[a-z]{2,3}")
# What `vaswani evaluate` prints.
SCORE_LINE = re.compile(r"^(\S.*?) (\d+\.\d+)  (nrefs:\S+)$", re.MULTILINE)
PERPLEXITY_LINE = re.compile(r"^perplexity (\d+\.\d+) ", re.MULTILINE)
SEARCH_LINE = re.compile(r"^search (\S+)", re.MULTILINE)
INTENDED_USE = (
    "To translate single sentences of the kind it was trained on from $source to $target, and to study or reproduce "
    'the Transformer of "Attention Is All You Need". It is no tool for decisions about people, health or law.'
)
LIMITS = (
    "It sees one sentence at a time and knows its training data only: names, numbers and words outside of it come out "
    "wrong, and fluent output may say what the source does not. It repeats what is biased in that data. "
    "Sentences of more than $max_length sub-words are longer than any it has learnt from. $licence"
)
NO_LICENCE = "Nobody has stated a licence of the weights or of the training data: ask before you share or sell."


@dataclass(frozen=True)
class Score:
    """A number of a test set with what is needed to find it again.

    Attributes:
        dataset: name of the test set.
        metric: what was counted; "BLEU" is sacreBLEU's.
        value: 0 to 100, but for the perplexity.
        signature: sacreBLEU's; of the perplexity how it was counted.
        search: settings of the search, as `evaluation.describe_search` writes them.
    """

    dataset: str
    metric: str
    value: float
    signature: str
    search: str


@dataclass(frozen=True)
class Run:
    """What a run folder tells about a finished run.

    Attributes:
        recipe, versions: as recipe.json has them.
        updates, planned_updates: done at the end of the log, and what the recipe says.
        seconds: of training, over all sittings.
        target_tokens: learnt from, estimated from the log.
        dev_perplexity: of the last evaluation.
    """

    recipe: dict
    versions: dict
    seed: int
    num_parameters: int
    num_processes: int
    mixed_precision: str
    updates: int
    planned_updates: int
    seconds: float
    target_tokens: float
    dev_perplexity: float | None
    languages: tuple[str, str] | None


@dataclass(frozen=True, kw_only=True)
class CardText:
    """What no run folder knows, as text for the card; empty where nobody says.

    Attributes:
        name: title of the card.
        data: what the model was trained on.
        dataset: the same as a name on the Hub, for the metadata.
        license: identifier of the Hub for the weights, such as apache-2.0, or "other".
        hardware: devices it was trained on.
    """

    name: str = ""
    data: str = ""
    dataset: str = ""
    license: str = ""
    hardware: str = ""


def read_scores(dataset: str, path: Path) -> list[Score]:
    """The scores of `dataset` from what `vaswani evaluate ... > path` printed.

    Raises:
        OSError: if there is no such file.
        ValueError: if it holds no score with its signature and search.
    """
    text = path.read_text(encoding="utf-8")
    lines, search, perplexity = SCORE_LINE.findall(text), SEARCH_LINE.search(text), PERPLEXITY_LINE.search(text)
    if not lines or search is None:
        raise ValueError(
            f"{path} does not hold what `vaswani evaluate` prints, lines of scores with their signature and a line "
            f"search. Write it with `vaswani evaluate --model ... --test ... > {path}`."
        )
    scores = [Score(dataset, metric, float(value), signature, search[1]) for metric, value, signature in lines]
    if perplexity is not None:
        scores.append(Score(dataset, PERPLEXITY, float(perplexity[1]), "a sub-word, no label smoothing", search[1]))
    return scores


def read_run(folder: Path) -> Run:
    """Recipe, log and languages of the finished run in `folder`.

    Raises:
        FileNotFoundError: if a part is missing.
        ValueError: if a part is damaged, or if the log has no line of training.
    """
    for name in (RECIPE_FILE, LOG_FILE, f"{MODEL_FOLDER}/config.json"):
        if not (folder / name).is_file():
            raise FileNotFoundError(
                f"{folder} holds no {name}: expected the folder of a finished run, --output of `vaswani train`."
            )
    description, config = _read_object(folder / RECIPE_FILE), _read_object(folder / MODEL_FOLDER / "config.json")
    log = read_log(folder)
    trained = [line for line in log if "seconds" in line and "update" in line]
    dev = [line["dev_perplexity"] for line in log if _is_number(line.get("dev_perplexity"))]
    if not trained:
        raise ValueError(f"{folder / LOG_FILE} has no line of training: there is nothing to say on the card yet.")
    try:
        return Run(
            recipe=dict(description["recipe"]),
            versions=dict(description["versions"]),
            seed=int(description["seed"]),
            num_parameters=int(description["num_parameters"]),
            num_processes=int(description["num_processes"]),
            mixed_precision=str(description["mixed_precision"]),
            updates=max(int(line["update"]) for line in log if "update" in line),
            planned_updates=int(description["recipe"]["num_updates"]),
            seconds=float(trained[-1]["seconds"]),
            target_tokens=estimate_target_tokens(log),
            dev_perplexity=dev[-1] if dev else None,
            languages=_find_languages(config.get("custom_pipelines")),
        )
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise ValueError(
            f"{folder} was not written by this version of `vaswani train`, or a file of it is damaged: "
            f"{type(error).__name__} {error}. Check {RECIPE_FILE} and {LOG_FILE}."
        ) from error


def _read_object(path: Path) -> dict:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: expected a JSON object ({error}). Copy it again.") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} is damaged: expected a JSON object, found {type(value).__name__}. Copy it again.")
    return value


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _find_languages(pipelines: object) -> tuple[str, str] | None:
    """Source and target language by the name of the model's own task."""
    tasks = [TASK.fullmatch(str(name)) for name in pipelines] if isinstance(pipelines, Mapping) else []
    return next(((task[1], task[2]) for task in tasks if task), None)


def build_card(folder: Path, *, scores: Sequence[Score] = (), text: CardText | None = None) -> str:
    """The card of the run in `folder`.

    Raises:
        as `read_run`, and ValueError if the Hub would not accept the metadata.
    """
    run, text = read_run(folder), text or CardText()
    name = text.name or folder.resolve().name
    source, target = run.languages or ("the source", "the target language")
    licence = NO_LICENCE if not text.license else f"Licence of the weights: {escape(text.license)}."
    values = {
        "metadata": _metadata(run, scores, text, name=name),
        "name": escape(name),
        "summary": _summary(run, text, source=source, target=target),
        "model_id": MODEL_ID,
        "intended_use": Template(INTENDED_USE).substitute(source=source, target=target),
        "recipe": _recipe(run),
        "cost": _cost(run, text),
        "scores": _scores(run, scores),
        "limits": Template(LIMITS).substitute(max_length=run.recipe.get("max_length", "?"), licence=licence),
    }
    card = Template(TEMPLATE.read_text(encoding="utf-8")).substitute(values)
    check_card(card)
    return card


def _metadata(run: Run, scores: Sequence[Score], text: CardText, *, name: str) -> str:
    results = [
        EvalResult(
            task_type="translation",
            dataset_type=text.dataset or re.sub(r"\W+", "-", score.dataset.lower()).strip("-"),
            dataset_name=score.dataset,
            metric_type=re.split(r"\W", score.metric.lower())[0],
            metric_name=score.metric,
            metric_value=score.value,
            metric_args={"signature": score.signature, "search": score.search},
        )
        for score in scores
    ]
    data = ModelCardData(
        language=list(run.languages) if run.languages else None,
        license=text.license or "unknown",
        library_name="transformers",
        pipeline_tag="translation",
        tags=["vaswani_transformer", "attention-is-all-you-need"],
        datasets=[text.dataset] if text.dataset else None,
        metrics=sorted({result.metric_type for result in results}) or None,
        model_name=name if scores else None,
        eval_results=results or None,
    )
    return data.to_yaml()


def _summary(run: Run, text: CardText, *, source: str, target: str) -> str:
    data = f"trained on {escape(text.data)}" if text.data else "trained on data its author has not named"
    return (
        f'The Transformer of "Attention Is All You Need" with {run.num_parameters:,} parameters, from {source} to '
        f"{target}, {data}."
    )


def _recipe(run: Run) -> str:
    names = [name for name, recipe in RECIPES.items() if _is_same_recipe(recipe.to_dict(), run.recipe)]
    named = f"`{names[0]}` of `vaswani_transformer`" if names else "No named recipe of `vaswani_transformer`"
    lines = [f"{named}, seed {run.seed}; {run.updates:,} updates done, {run.planned_updates:,} planned."]
    lines += ["", "| setting | value |", "|---|---|"]
    for name, value in run.recipe.items():
        lines.append(f"| {code(name)} | {code(json.dumps(value, ensure_ascii=False))} |")
    return "\n".join(lines)


def _is_same_recipe(ours: dict, theirs: dict) -> bool:
    """Whether a run with `theirs` is one of `ours`; the vocabulary of a run is what its corpus gave."""
    either = {"vocab_size": None}
    return json.loads(json.dumps(ours | either)) == theirs | either


def _cost(run: Run, text: CardText) -> str:
    hours = run.seconds / 3600
    devices = escape(text.hardware) if text.hardware else "not written down"
    versions = ", ".join(f"{escape(str(name))} {escape(str(version))}" for name, version in run.versions.items())
    return (
        f"Devices: {devices}; processes: {run.num_processes}; mixed precision: {escape(run.mixed_precision)}. "
        f"{hours:.1f} hours of training over all sittings, {hours * run.num_processes:.1f} device hours; "
        f"{run.target_tokens:,.0f} target tokens, so {6 * run.num_parameters * run.target_tokens:.1e} FLOP by 6 x "
        f"parameters x tokens.\n\nVersions: {versions}."
    )


def _scores(run: Run, scores: Sequence[Score]) -> str:
    lines = []
    if scores:
        lines += ["| test set | metric | score | signature | search |", "|---|---|---|---|---|"]
    for score in scores:
        value = f"{score.value:.3f}" if score.metric == PERPLEXITY else f"**{score.value:.2f}**"
        cells = (escape(score.dataset), escape(score.metric), value, code(score.signature), code(score.search))
        lines.append(f"| {' | '.join(cells)} |")
    if not scores:
        lines.append("No test set has been scored: `vaswani evaluate`, then `vaswani card --score`.")
    if run.dev_perplexity is not None:
        lines += ["", f"Perplexity of the development set at the last checkpoint: {run.dev_perplexity:.3f} a sub-word."]
    return "\n".join(lines)


def escape(text: str) -> str:
    """`text` as Markdown that shows it: no markup, no HTML, no line break."""
    return re.sub(r"([\\`*_\[\]|#~!])", r"\\\1", html.escape(_one_line(text), quote=False))


def code(text: str) -> str:
    """`text` as code in a cell of a Markdown table, where no markup and no HTML is read."""
    return "`{}`".format(_one_line(text).replace("`", "'").replace("|", "\\|"))


def _one_line(text: str) -> str:
    """`text` without line breaks and other characters that show nothing or turn the direction of what follows."""
    return " ".join("".join(character if character.isprintable() else " " for character in text).split())


def check_card(card: str) -> None:
    """Refuse a card whose metadata the Hub would refuse; the part of its rules that needs no network.

    Raises:
        ValueError: with what is wrong.
    """
    if not REGEX_YAML_BLOCK.search(card):
        raise ValueError(f"a card begins with its metadata between two lines of ---, got {card[:40]!r}.")
    try:
        data = ModelCard(card).data
    except (ValueError, TypeError, KeyError, AttributeError, yaml.YAMLError) as error:
        raise ValueError(f"the metadata of the card cannot be read: {error}. Mend what stands between ---.") from error
    languages = [data.language] if isinstance(data.language, str) else data.language or []
    for language in languages:
        if not LANGUAGE.fullmatch(str(language)):
            raise ValueError(f"language of the card: expected codes of ISO 639 such as en, got {language!r}.")
    if data.license == "other" and not data.get("license_name"):
        raise ValueError("license of the card is other: add license_name, and license_link where there is one.")
    for result in data.eval_results or []:
        if not _is_number(result.metric_value):
            raise ValueError(
                f"a metric of the card is a number, got {result.metric_value!r} of {result.dataset_name!r}."
            )
