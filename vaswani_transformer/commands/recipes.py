"""List the recipes, or print one of them as JSON. `vaswani prepare --recipe FILE` takes a changed copy of this JSON.

vaswani recipes
vaswani recipes multi30k_tiny > mine.json
"""

import argparse
import json


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("name", nargs="?", help="name of a recipe, or a JSON file")


def run(args: argparse.Namespace) -> None:
    from ..training.cost import count_parameters
    from ..training.recipes import ABOUT, CATALOGUE, RECIPES, build_config, load_recipe, model_defaults

    if args.name is not None:
        fields = load_recipe(args.name).to_dict()
        fields["model"] = model_defaults() | fields["model"]
        print(json.dumps(fields, indent=2))
        return
    line = "{:24}{:>11}  {:26}{:38}{}"
    print(line.format("recipe", "parameters", "row of the paper", "data", "hardware"))
    for name, recipe in RECIPES.items():
        num_parameters = count_parameters(build_config(recipe.model, vocab_size=recipe.vocab_size)).total()
        about = [CATALOGUE[name].get(entry, "") for entry in ABOUT]
        print(line.format(name, f"{num_parameters / 1e6:.1f}M", *about).rstrip())
    print("\nThe paper gives 65M for base and 213M for big, but no vocabulary size. Ours is 37,000 for English-German.")
