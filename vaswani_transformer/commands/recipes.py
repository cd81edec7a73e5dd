import argparse
import json

import torch

from ..model.configuration_vaswani import VaswaniConfig
from ..model.modeling_vaswani import VaswaniForConditionalGeneration
from ..training.recipes import CATALOGUE, Recipe, load_recipe, model_defaults


def run(args: argparse.Namespace) -> None:
    if args.name is not None:
        fields = load_recipe(args.name).to_dict()
        fields["model"] = model_defaults() | fields["model"]
        print(json.dumps(fields, indent=2))
        return
    line = "{:24}{:>11}  {:26}{:38}{}"
    print(line.format("recipe", "parameters", "row of the paper", "for", "trained on"))
    for name, (recipe, row, data, hardware) in CATALOGUE.items():
        print(line.format(name, f"{_count_parameters(recipe) / 1e6:.1f}M", row, data, hardware).rstrip())


def _count_parameters(recipe: Recipe) -> int:
    """Return the parameters of the model of `recipe`, if its vocabulary has as many entries as the recipe learns."""
    with torch.device("meta"):
        config = VaswaniConfig(**{"vocab_size": recipe.vocab_size} | recipe.model)
        return VaswaniForConditionalGeneration(config).num_parameters()
