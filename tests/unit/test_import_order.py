"""The order of imports: a file imports only from lower layers or from its own folder, and no imports are circular."""

import ast
from graphlib import TopologicalSorter
from importlib.util import resolve_name
from pathlib import Path

import pytest

import vaswani_transformer

PACKAGE = Path(vaswani_transformer.__file__).parent
PREFIX = "vaswani_transformer."
# The layers of the package, from the lowest up. The folders and files of one layer do not import each other.
LAYERS = [
    {"model", "devices"},
    {"engine", "kernels", "memory", "files", "bounds", "text"},
    {"runs"},
    {"averaging", "data"},
    {"loading"},
    {"attention", "training"},
    {"translation"},
    {"evaluation", "parsing", "conversion", "export"},
    {"hub"},
    {"commands"},
    {"cli", "registration"},
    {"__main__", "__init__"},
]
LAYER_OF = {name: number for number, layer in enumerate(LAYERS) for name in layer}
SHARED_BY_COMMANDS = {"commands.arguments"}
FILES = {".".join(path.relative_to(PACKAGE).with_suffix("").parts): path for path in PACKAGE.rglob("*.py")}


def find_imports(module: str) -> set[str]:
    """Return the modules of the package that a module imports, by their names relative to the package."""
    package = (PREFIX + module).rpartition(".")[0]
    found = set()
    for node in ast.walk(ast.parse(FILES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            origin = resolve_name("." * node.level + (node.module or ""), package)
            names = [f"{origin}.{alias.name}" for alias in node.names]
            found |= {name if name.removeprefix(PREFIX) in FILES else origin for name in names}
    return {name.removeprefix(PREFIX) for name in found if name.startswith(PREFIX)}


IMPORTS = {module: find_imports(module) for module in FILES}


@pytest.mark.parametrize("module", sorted(FILES))
def test_every_file_imports_only_from_lower_layers_or_its_folder(module):
    folder, _, name = module.partition(".")
    for imported in IMPORTS[module]:
        imported_folder = imported.partition(".")[0]
        if name and imported_folder == folder:
            # A command imports no other command, only what commands share. `commands/__init__.py` lists all commands.
            is_allowed = folder != "commands" or name == "__init__" or imported in SHARED_BY_COMMANDS
        else:
            is_allowed = LAYER_OF[imported_folder] < LAYER_OF[folder]
        assert is_allowed, f"{module} imports {imported}, which the layers or the rule for commands forbid"


def test_there_are_no_circular_imports():
    TopologicalSorter(IMPORTS).prepare()
