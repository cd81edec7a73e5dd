"""The card of a trained model, filled from its run folder: what it is, how it was trained, how well it scores.

    text = build_card(Path("runs/base"), scores=read_scores("WMT 2014 newstest2014", Path("newstest2014.score")))

The numbers are those that training and `vaswani evaluate` wrote down. The card says which facts are missing, and its
text may be edited.
"""

import html
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template

import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from huggingface_hub.repocard import REGEX_YAML_BLOCK

from ..evaluation.scores import BLEU, CHRF, LOWER_CASED, PAPER, TOKENISED
from ..files import blaming, read_object
from ..loading import find_languages, fingerprint_model
from ..model.pipeline_vaswani import MODEL_FOLDER
from ..training.cost import RunCost
from ..training.log import read_log
from ..training.recipes import RECIPES
from ..training.run_folder import RECIPE_FILE

TEMPLATE = Path(__file__).with_name("card_template.md")
MODEL_ID = "OWNER/NAME"  # replaced by the model's name on the Hub
PERPLEXITY = "perplexity"
# Metrics of `vaswani evaluate`, and their names on the Hub.
METRICS = {**dict.fromkeys((BLEU, LOWER_CASED, PAPER, TOKENISED), "bleu"), CHRF: "chrf", PERPLEXITY: "perplexity"}
LANGUAGE = re.compile(r"[a-z]{2,3}")
# Lines that `vaswani evaluate` prints.
SCORE_LINE = re.compile(r"^(\S.*?) (\d+\.\d+)  (nrefs:\S+)$", re.MULTILINE)
PERPLEXITY_LINE = re.compile(r"^perplexity (\d+\.\d+) ", re.MULTILINE)
SEARCH_LINE = re.compile(r"^search (.+?)  model .+  fingerprint (.+)$", re.MULTILINE)
TREES = "trees"  # the target language of runs on data of `vaswani prepare --task parsing`
INTENDED_USE = (
    "To $purpose, and to study or reproduce the Transformer of "
    '"Attention Is All You Need". It is no tool for decisions about people, health or law.'
)
LIMITS = (
    "It sees one sentence at a time and knows its training data only: $errors. It repeats the biases of that data. "
    "Sentences of more than $max_length sub-words are longer than any in its training data. $licence"
)
NO_LICENCE = "No licence of the weights or of the training data is stated: ask before you share or sell."


@dataclass(frozen=True)
class Task:
    """The parts of a card that depend on what the model does; in texts $model_id, $source and $target are filled in."""

    pipeline_tag: str | None  # its name on the Hub, if there is one
    use: str
    purpose: str
    errors: str
    no_scores: str


TRANSLATION = Task(
    pipeline_tag="translation",
    use="""\
```python
from transformers import pipeline

translate = pipeline("translation", model="$model_id", trust_remote_code=True)
print(translate("A dog runs."))
```

The code comes with the model: `trust_remote_code=True` runs it, so look at it first, or install `vaswani_transformer`
and take its own `pipeline`, which needs no trust. Weights are in safetensors only.""",
    purpose="translate single sentences of the kind it was trained on from $source to $target",
    errors="names, numbers and words outside of it come out wrong, and fluent output may be a wrong translation",
    no_scores="No test set has been scored: `vaswani evaluate`, then `vaswani card --score`.",
)
PARSING = Task(
    pipeline_tag=None,
    use="""\
```bash
vaswani parse --model $model_id --input sentences.txt --output trees.mrg
```

One sentence per line, words separated by spaces. `vaswani_transformer` must be installed: it builds the trees from the
output of the model. Weights are in safetensors only.""",
    purpose="parse single sentences of the kind it was trained on, in $source, into constituency trees",
    errors="the trees of sentences of another kind are often wrong",
    no_scores="No test set has been scored: write down here the bracket F1 of `vaswani parse --gold`.",
)


@dataclass(frozen=True)
class Score:
    """A score of a test set with what is needed to reproduce it."""

    dataset: str
    metric: str  # a key of `METRICS`; "BLEU" is sacreBLEU's
    value: float  # 0 to 100, or a perplexity
    signature: str  # sacreBLEU's; for a perplexity, how it was counted
    search: str  # as `perplexity.describe_search` writes it
    fingerprint: str  # of the model, as `loading.fingerprint_model` gives it


@dataclass(frozen=True)
class Run:
    """A finished run, as its folder describes it."""

    cost: RunCost
    recipe: dict
    versions: dict
    updates: int  # done at the end of the log
    planned_updates: int
    dev_perplexity: float | None  # of the last evaluation
    init: tuple[str, str] | None  # name and fingerprint of the model whose weights it began with
    languages: tuple[str, str] | None  # as given to `vaswani prepare`; the second is `TREES` if the run parses

    @property
    def task(self) -> Task:
        return PARSING if self.languages and self.languages[1] == TREES else TRANSLATION


@dataclass(frozen=True, kw_only=True)
class CardText:
    """Text for the card that no run folder knows; empty where not given."""

    name: str = ""  # title of the card
    data: str = ""  # what the model was trained on, in words
    dataset: str = ""  # its name on the Hub, for the metadata
    license: str = ""  # identifier of the Hub for the weights, such as apache-2.0, or "other"
    license_name: str = ""  # of an "other" licence
    hardware: str = ""  # devices it was trained on


def read_scores(dataset: str, path: Path) -> list[Score]:
    """Read the scores of `dataset` from a file with the output of `vaswani evaluate`.

    Raises:
        OSError: if there is no such file.
        ValueError: if it holds no score with its signature and search, or scores of several models.
    """
    text = path.read_text(encoding="utf-8")
    lines, search, perplexity = SCORE_LINE.findall(text), SEARCH_LINE.search(text), PERPLEXITY_LINE.search(text)
    if not lines or search is None:
        raise ValueError(
            f"{path} does not hold what `vaswani evaluate` prints, lines of scores with their signature and a line "
            f"search. Write it with `vaswani evaluate --model ... --test ... > {path}`."
        )
    if " + " in search[2]:
        raise ValueError(f"{path} holds the scores of an ensemble, not of a model: evaluate without --ensemble.")
    if perplexity is not None:
        lines.append((PERPLEXITY, perplexity[1], "per sub-word, no label smoothing"))
    for metric, *_ in lines:
        if metric not in METRICS:
            raise ValueError(f"{path} holds {metric!r}, expected {', '.join(METRICS)}. Evaluate the model again.")
    return [Score(dataset, metric, float(value), signature, *search.groups()) for metric, value, signature in lines]


def read_run(folder: Path) -> Run:
    """Read recipe, log and languages of the finished run in `folder`.

    Raises:
        FileNotFoundError: if a part is missing.
        ValueError: if a part is damaged, or if the log has no line of training.
    """
    cost, log, description = RunCost.read(folder), read_log(folder), read_object(folder / RECIPE_FILE)
    path = folder / MODEL_FOLDER / "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist: expected a finished run, --output of `vaswani train`.")
    config = read_object(path)
    dev = [line["dev_perplexity"] for line in log if _is_number(line.get("dev_perplexity"))]
    with blaming(folder / RECIPE_FILE):
        return Run(
            cost=cost,
            recipe=dict(description["recipe"]),
            versions=dict(description["versions"]),
            updates=max(line["update"] for line in log),
            planned_updates=int(description["recipe"]["num_updates"]),
            dev_perplexity=dev[-1] if dev else None,
            init=(description["init_from"], description["init_fingerprint"]) if description["init_from"] else None,
            languages=find_languages(config.get("custom_pipelines")),
        )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def build_card(folder: Path, *, scores: Sequence[Score] = (), text: CardText | None = None) -> str:
    """Build the card of the run in `folder`.

    Raises:
        FileNotFoundError, ValueError: as `read_run`, and ValueError if the scores are of another model, or if the Hub
            would refuse the metadata.
    """
    run, text = read_run(folder), text or CardText()
    _check_scores(folder, run, scores)
    name = text.name or folder.resolve().name
    source, target = run.languages or ("the source", "the target language")
    named = escape(text.license_name or text.license)
    licence = f"Licence of the weights: {named}." if named else NO_LICENCE
    purpose = Template(run.task.purpose).substitute(source=source, target=target)
    data = f"trained on {escape(text.data)}" if text.data else "trained on data its author has not named"
    values = {
        "metadata": _metadata(run, scores, text, name=name),
        "name": escape(name),
        "summary": (
            f'The Transformer of "Attention Is All You Need" with {run.cost.num_parameters:,} parameters, '
            f"from {source} to {target}, {data}."
        ),
        "use": Template(run.task.use).substitute(model_id=MODEL_ID),
        "intended_use": Template(INTENDED_USE).substitute(purpose=purpose),
        "recipe": _recipe(run),
        "cost": _cost(run, text),
        "scores": _scores(run, scores),
        "limits": Template(LIMITS).substitute(
            errors=run.task.errors, max_length=run.recipe.get("max_length", "?"), licence=licence
        ),
    }
    card = Template(TEMPLATE.read_text(encoding="utf-8")).substitute(values)
    check_card(card)
    return card


def _check_scores(folder: Path, run: Run, scores: Sequence[Score]) -> None:
    """Refuse scores that are not of the model of this run."""
    if scores and run.task is not TRANSLATION:
        raise ValueError(f"{folder} parses, and these are scores of translations: {run.task.no_scores}")
    fingerprint = fingerprint_model(folder / MODEL_FOLDER) if scores else ""
    for score in scores:
        if score.fingerprint != fingerprint:
            raise ValueError(
                f"the scores of {score.dataset} are of a model of fingerprint {score.fingerprint}, but that of "
                f"{folder} is {fingerprint}: evaluate it again."
            )


def _metadata(run: Run, scores: Sequence[Score], text: CardText, *, name: str) -> str:
    results = [
        EvalResult(
            task_type="translation",
            dataset_type=re.sub(r"\W+", "-", score.dataset.lower()).strip("-"),
            dataset_name=score.dataset,
            metric_type=METRICS[score.metric],
            metric_name=score.metric,
            metric_value=score.value,
            metric_args={"signature": score.signature, "search": score.search, "model": score.fingerprint},
        )
        for score in scores
    ]
    data = ModelCardData(
        language=[name for name in run.languages or () if LANGUAGE.fullmatch(name)] or None,
        license=text.license or "unknown",
        license_name=text.license_name or None,
        library_name="transformers",
        pipeline_tag=run.task.pipeline_tag,
        tags=["vaswani_transformer", "attention-is-all-you-need"],
        datasets=[text.dataset] if text.dataset else None,
        metrics=sorted({result.metric_type for result in results}) or None,
        model_name=name if scores else None,
        eval_results=results or None,
    )
    return data.to_yaml()


def _recipe(run: Run) -> str:
    names = [name for name, recipe in RECIPES.items() if _is_same_recipe(recipe.to_dict(), run.recipe)]
    named = f"`{names[0]}` of `vaswani_transformer`" if names else "No named recipe of `vaswani_transformer`"
    lines = [f"{named}, seed {run.cost.seed}; {run.updates:,} updates done, {run.planned_updates:,} planned."]
    if run.init:
        name, fingerprint = run.init
        name = Path(name).name if Path(name).is_absolute() else name  # folders of a machine are not for the Hub
        lines.append(f"It began with the weights of {code(name)}, fingerprint {code(fingerprint)}.")
    lines += ["", "| setting | value |", "|---|---|"]
    for name, value in run.recipe.items():
        lines.append(f"| {code(name)} | {code(json.dumps(value, ensure_ascii=False))} |")
    return "\n".join(lines)


def _is_same_recipe(ours: dict, theirs: dict) -> bool:
    """Return True if two recipes differ in no more than what the corpus and the device decide."""
    either = {"vocab_size": None, "compile": None, "bucketed": None}
    return json.loads(json.dumps(ours | either)) == theirs | either


def _cost(run: Run, text: CardText) -> str:
    cost, hours = run.cost, run.cost.seconds / 3600
    devices = escape(text.hardware) if text.hardware else "not written down"
    versions = ", ".join(f"{escape(str(name))} {escape(str(version))}" for name, version in run.versions.items())
    return (
        f"Devices: {devices}; processes: {cost.num_processes}; mixed precision: {escape(cost.mixed_precision)}. "
        f"{hours:.1f} hours of training over all sittings, {hours * cost.num_processes:.1f} device hours; "
        f"{cost.target_tokens:,.0f} target tokens, so {cost.weight_flop:.1e} FLOP by 6 x parameters x "
        f"tokens.\n\nVersions: {versions}."
    )


def _scores(run: Run, scores: Sequence[Score]) -> str:
    lines = []
    if scores:
        lines += ["| test set | metric | score | signature | search |", "|---|---|---|---|---|"]
    for score in scores:
        value = f"{score.value:.3f}" if score.metric == PERPLEXITY else f"**{score.value:.2f}**"
        cells = (escape(score.dataset), escape(score.metric), value, code(score.signature), code(score.search))
        lines.append(f"| {' | '.join(cells)} |")
    if scores:
        lines += ["", f"Fingerprint of the scored model: {code(scores[0].fingerprint)}."]
    else:
        lines.append(run.task.no_scores)
    if run.dev_perplexity is not None:
        lines += [
            "",
            f"Perplexity of the development set at the last checkpoint: {run.dev_perplexity:.3f} per sub-word.",
        ]
    return "\n".join(lines)


def escape(text: str) -> str:
    """Return `text` as Markdown that shows it: no markup, no HTML, no line break."""
    return re.sub(r"([\\`*_\[\]|#~!])", r"\\\1", html.escape(_one_line(text), quote=False))


def code(text: str) -> str:
    """Return `text` as code in a cell of a Markdown table, where neither markup nor HTML is read."""
    return "`{}`".format(_one_line(text).replace("`", "'").replace("|", "\\|"))


def _one_line(text: str) -> str:
    """Return `text` without line breaks, invisible characters and marks of direction."""
    return " ".join("".join(character if character.isprintable() else " " for character in text).split())


def check_card(card: str) -> None:
    """Refuse a card whose metadata the Hub would refuse, by those of its rules that need no network.

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
        raise ValueError("license of the card is other: add license_name (--license_name of `vaswani card`).")
    for result in data.eval_results or []:
        if not _is_number(result.metric_value):
            raise ValueError(
                f"a metric of the card is a number, got {result.metric_value!r} of {result.dataset_name!r}."
            )
