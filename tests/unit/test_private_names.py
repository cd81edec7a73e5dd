"""The docstring of generation_vaswani.py lists all private names of transformers that this file uses.

Each of these names still exists in transformers.
"""

import ast
import inspect
import re

import pytest
from transformers import GenerationConfig, GenerationMixin

from vaswani_transformer.model import generation_vaswani

LISTED = set(re.findall(r"`(_\w+)`", generation_vaswani.__doc__))


def is_set_on_self(node):
    """Return True if `node` is an attribute of `self` to which a value is assigned, as in `self.name = value`."""
    return isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self"


def test_the_docstring_lists_every_private_name_of_transformers_in_use():
    nodes = list(ast.walk(ast.parse(inspect.getsource(generation_vaswani))))
    used = {node.attr for node in nodes if isinstance(node, ast.Attribute) and re.match("_[^_]", node.attr)}
    defined = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    ours = {name for name in defined if not hasattr(GenerationConfig, name) and not hasattr(GenerationMixin, name)}
    ours |= {node.attr for node in nodes if isinstance(node, ast.Attribute) and is_set_on_self(node)}
    assert used - ours == LISTED


@pytest.mark.parametrize("name", sorted(LISTED))
def test_transformers_still_has_each_listed_private_name(name, tiny_model):
    config = GenerationConfig(eos_token_id=2, decoder_start_token_id=0)
    tiny_model._prepare_special_tokens(config, device=tiny_model.device)
    assert any(hasattr(holder, name) for holder in (tiny_model, config, tiny_model.config))
