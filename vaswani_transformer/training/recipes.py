"""The settings of a training run (section 5), and the named recipes of recipes.toml."""

import json
import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path

from huggingface_hub.errors import StrictDataclassError
from transformers import CONFIG_MAPPING

from ..bounds import SEARCH_BOUNDS, Number
from ..files import blaming, read_object
from ..model.configuration_vaswani import VaswaniConfig
from .progress import Progress

ABOUT = ("row", "data", "hardware")  # entries of recipes.toml that describe a recipe
WIDTHS = ("d_model", "d_ff", "d_k", "d_v")
OF_DATA = ("vocab_size", "subword_model", "max_length", "max_length_ratio")  # fields that only `vaswani prepare` reads
BOUNDS = {
    "vocab_size": Number(1, 1_000_000),
    "max_length": SEARCH_BOUNDS["max_length"],
    "max_length_ratio": Number(1.0, 1_000.0),
    "tokens_per_batch": Number(1, 10_000_000),
    "num_updates": Number(1, 1_000_000_000),
    "adam_eps": Number(0.0, 1.0),
    "warmup_updates": Number(1, 1_000_000_000),
    "lr_scale": Number(0.0, 1_000_000.0),
    "weight_decay": Number(0.0, 1_000_000.0),
    "num_averaged_checkpoints": Number(1, 1_000),
    "patience": Number(1, 1_000_000),
    "num_beams": SEARCH_BOUNDS["num_beams"],
    "length_penalty": SEARCH_BOUNDS["length_penalty"],
}
BETA = Number(0.0, 0.999_999_999)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Settings of one training run, in the order of the paper. The defaults are those of the paper's base model."""

    # The fields of `VaswaniConfig` that differ from its defaults; with `model_type`, those of a variation's config.
    model: dict = field(default_factory=dict)
    # Section 5.1
    vocab_size: int = 37_000  # entries of the shared vocabulary to learn
    subword_model: str = "bpe"  # or "wordpiece"
    max_length: int = 256  # most tokens of a side, `</s>` included; longer pairs are dropped
    max_length_ratio: float | None = None  # largest ratio of the longer side to the shorter, in words; None: no limit
    tokens_per_batch: int = 25_000  # limit of the tokens of an update on each side, with padding, over all processes
    short_first: bool = False  # sort the updates of the first epoch by length, shortest first
    # Section 5.2
    num_updates: int = 100_000  # optimizer steps
    # Section 5.3
    adam_betas: tuple[float, float] = (0.9, 0.98)
    adam_eps: float = 1e-9
    warmup_updates: int = 4_000
    lr_scale: float = 1.0  # multiplies the learning rate of equation 3
    weight_decay: float = 0.0  # as in AdamW: an update subtracts lr * weight_decay * weight from each weight
    compile: bool | None = None  # compile the updates by torch.compile, which takes minutes; None: only on CUDA
    # Section 6.1
    # The paper writes a checkpoint every ten minutes, which is every 1,500 updates of 0.4 s. Here the interval is
    # counted in updates or epochs. So the averaged model depends neither on the hardware nor on when a run is stopped.
    checkpoint_interval: tuple[int, str] = (1_500, "updates")  # or "epochs"
    num_averaged_checkpoints: int = 5  # how many of the last checkpoints are averaged into the final model
    patience: int | None = None  # a run ends after this number of evaluations in a row without a better loss
    num_beams: int = 4
    length_penalty: float = 0.6

    def __post_init__(self) -> None:
        for name, bounds in BOUNDS.items():
            value = getattr(self, name)
            if value not in bounds and value is not getattr(Recipe, name):  # Some defaults are None.
                raise ValueError(f"{name} must be {bounds}, got {value!r}.")
        if not (isinstance(self.short_first, bool) and isinstance(self.compile, bool | None)):
            raise ValueError(
                f"short_first must be true or false, and compile must be true, false or null; "
                f"got {self.short_first!r} and {self.compile!r}."
            )
        match self.adam_betas:
            case (one, two) if one in BETA and two in BETA:
                pass
            case other:
                raise ValueError(
                    f"adam_betas must be two numbers from 0 to below 1, such as [0.9, 0.98], got {other!r}."
                )
        match self.checkpoint_interval:
            case (amount, "updates" | "epochs") if amount in Number(1, 1_000_000_000):
                pass
            case other:
                raise ValueError(f'checkpoint_interval must be like [500, "updates"] or [1, "epochs"], got {other!r}.')

    def to_dict(self) -> dict:
        """Return the recipe as JSON values, as in recipe.json."""
        return asdict(self)

    def is_interval_complete(self, progress: Progress) -> bool:
        """Return True if an interval between checkpoints has just ended. `num_updates` has no effect."""
        amount, unit = self.checkpoint_interval
        if unit == "epochs":
            return progress.updates_of_epoch == 0 and progress.epoch % amount == 0
        return progress.update % amount == 0

    def is_checkpoint_due(self, progress: Progress) -> bool:
        """Return True if an interval between checkpoints has just ended, or if the last update is done."""
        return self.is_interval_complete(progress) or progress.update >= self.num_updates

    def is_finished(self, progress: Progress) -> bool:
        """Return True if all updates are done, or if the patience is used up."""
        patience = self.patience or math.inf
        return progress.update >= self.num_updates or progress.evaluations_without_gain >= patience


def load_recipe(name: str, changes: Iterable[str] = ()) -> Recipe:
    """Return the recipe called `name`, or the recipe in the JSON file `name`, with `changes`.

    Args:
        name: a name of `RECIPES`, or a JSON file. The file holds an object with fields of `Recipe`, or has such an
            object as its entry "recipe", like the recipe.json of a run. Missing fields are as in the base model.
        changes: each is "FIELD=VALUE", or "model.FIELD=VALUE" for a field of the model. VALUE is read as JSON. If it is
            not JSON, it is a string.

    Raises:
        ValueError: if there is no such recipe, or if a field has a wrong name, type or value.
    """
    if name in RECIPES:
        values = RECIPES[name].to_dict()
    elif Path(name).is_file():
        values = read_object(Path(name))
        with blaming(Path(name)):
            values = dict(**values.get("recipe", values))
    else:
        choices = get_close_matches(name, RECIPES) or RECIPES
        raise ValueError(f"there is no recipe {name!r}, and no such file; choose one of: {', '.join(choices)}.")
    for change in changes:
        field_name, equals_sign, text = change.partition("=")
        if not equals_sign:
            raise ValueError(f"a change is FIELD=VALUE, such as model.dropout=0.3; got {change!r}.")
        try:
            value = json.loads(text)
        except json.JSONDecodeError:
            value = text
        values[field_name] = value
    return build_recipe(values)


def build_recipe(values: dict) -> Recipe:
    """Return the recipe with JSON `values`. Raise a ValueError if a field has a wrong name, type or value.

    A field of the model is an entry of `values["model"]`, or the entry "model.FIELD" of `values`.
    """
    model_entry = values.get("model", {})
    if not isinstance(model_entry, dict):
        raise ValueError(
            f"model must be an object of fields, got {model_entry!r}. To change one field, give model.dropout=0.3."
        )
    fields = {f"model.{name}": value for name, value in model_entry.items()}
    fields |= {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    fields.pop("model", None)
    model_fields = {
        f"model.{name}" for name in model_defaults(fields.get("model.model_type", VaswaniConfig.model_type))
    }
    known = Recipe.__annotations__.keys() | model_fields
    for name in fields.keys() - known:
        stem = name.rpartition(".")[2].rstrip("s")
        choices = [field for field in known if stem in field] or get_close_matches(name, known, cutoff=0.75) or known
        raise ValueError(f"a recipe has no field {name}; choose one of: {', '.join(sorted(choices))}.")
    model = {name.removeprefix("model."): fields.pop(name) for name in list(fields) if name in model_fields}
    try:
        build_config(model)  # checks the types and values of the fields
    except StrictDataclassError as error:
        raise ValueError(" ".join(str(error).split())) from error
    return Recipe(**fields, model=model)


def build_config(model: Mapping[str, object], **fields: object) -> VaswaniConfig:
    """Return the config of a model with the fields `model` of a recipe, and with further `fields`."""
    settings = {**model, **fields}
    return find_config_class(settings.pop("model_type", VaswaniConfig.model_type))(**settings)


def find_config_class(model_type: str) -> type[VaswaniConfig]:
    """Return the config class of the model, or of a variation that is registered with `AutoConfig`.

    Raises:
        ValueError: if no class of this package, nor a subclass, has this `model_type`.
    """
    found = CONFIG_MAPPING[model_type] if str(model_type) in CONFIG_MAPPING else object
    if not issubclass(found, VaswaniConfig):
        raise ValueError(
            f"no variation of the model has the model_type {model_type!r}: give --import FILE, the Python file that "
            f"defines and registers it."
        )
    return found


def model_defaults(model_type: str = VaswaniConfig.model_type) -> dict[str, object]:
    """Return the fields of the model that a recipe may change, with their values in the base model."""
    # The size of the vocabulary is a field of the recipe. The ids of special tokens are fixed.
    fixed = ("vocab_size", "is_encoder_decoder")
    kind = find_config_class(model_type)
    owners = [owner for owner in reversed(kind.__mro__) if issubclass(owner, VaswaniConfig)]
    names = ["model_type", *(name for owner in owners for name in vars(owner).get("__annotations__", ()))]
    return {name: getattr(kind, name) for name in names if name not in fixed and not name.endswith("_token_id")}


def divide_widths(recipe: Recipe, divisor: int) -> Recipe:
    """Return `recipe` with d_model, d_ff, d_k and d_v divided by `divisor`.

    If all rows of table 3 are divided by the same number, the ratios between their widths stay as in the paper.

    Raises:
        ValueError: if a width cannot be divided. The message names all widths.
    """
    config = build_config(recipe.model)
    widths = {name: getattr(config, name) for name in WIDTHS}
    if any(width % divisor for width in widths.values()):
        raise ValueError(f"{widths} cannot all be divided by {divisor}: choose a common divisor.")
    return replace(recipe, model=recipe.model | {name: width // divisor for name, width in widths.items()})


def _read_catalogue() -> dict[str, dict]:
    """Return the tables of recipes.toml. A table takes the entries that it lacks from the recipe that it is `like`."""
    catalogue = {}
    for name, entries in tomllib.loads(Path(__file__).with_name("recipes.toml").read_text("utf-8")).items():
        like = catalogue[entries.pop("like")] if "like" in entries else {"model": {}}
        catalogue[name] = like | entries | {"model": like["model"] | entries.get("model", {})}
    return catalogue


CATALOGUE = _read_catalogue()
RECIPES = {
    name: build_recipe({field: value for field, value in entries.items() if field not in ABOUT})
    for name, entries in CATALOGUE.items()
}
