"""The package is layered: a file imports from lower layers only."""

import ast
from pathlib import Path

import pytest

import vaswani_transformer

PACKAGE = Path(vaswani_transformer.__file__).parent
SHARED_BY_COMMANDS = ("commands.arguments", "commands.parsers", "commands.tables")
LAYERS = [
    {
        "model.configuration_vaswani",
        "model.beam_search_vaswani",
        "model.loss_vaswani",
        "model.cpu_vaswani",
    },
    {
        "model.plain_vaswani",
        "model.attention_window_vaswani",
        "model.generation_options_vaswani",
        "model.ensemble_vaswani",
    },
    {"model.layers_vaswani", "model.masks_vaswani", "model.steps_vaswani"},
    {"model.engine_layers_vaswani", "model.search_vaswani"},
    {"model.engine_steps_vaswani"},
    {"model.engine_vaswani"},
    {"model.pipeline_vaswani", "model.search_inputs_vaswani"},
    {"model.generation_vaswani"},
    {"model.saving_vaswani", "model.scoring_vaswani"},
    {"model.modeling_vaswani"},
    {"model.__init__"},
    {"memory", "devices", "figures", "files"},
    {"data.lines"},
    {"data.corpus", "data.phrasebook", "data.tokenization", "data.counting_sort"},
    {"data.filtering", "data.encoding", "data.buckets"},
    {"data.batching", "data.parts"},
    {"data.preparation"},
    {"loading"},
    {"attention.kinds"},
    {"attention.maps"},
    {"attention.drawing", "attention.heads", "attention.page"},
    {
        "training.recipes",
        "training.schedule",
        "training.diagnosis",
        "training.interruption",
        "training.parting",
        "training.checkpoints",
        "training.tally",
        "training.log",
        "training.sharding",
        "training.seq2seq_trainer",
    },
    {"training.run_folder", "training.curves", "training.development", "training.state"},
    {"training.cost", "training.setup"},
    {"training.trainer"},
    {"translation.batch_size"},
    {"translation.translator"},
    {"translation.files"},
    {"evaluation.paper_bleu"},
    {"evaluation.scores", "evaluation.pairs", "evaluation.paper_bleu_metric"},
    {"evaluation.perplexity"},
    {"parsing.trees"},
    {"parsing.linearisation", "parsing.bracket_f1", "parsing.well_formed"},
    {"parsing.vocabulary"},
    {"parsing.parser"},
    {"conversion.weight_names", "conversion.fairseq_dictionary"},
    {"conversion.marian", "conversion.fairseq"},
    {"export.ctranslate2_converter", "export.ctranslate2_translation", "export.onnx_export"},
    {"hub.card", "hub.demo"},
    {"hub.upload"},
    {"commands.parsers", "commands.tables"},
    {"commands.arguments"},
    {"commands"},
    {"cli"},
    {"__main__", "__init__"},
]
FLAT_FILES = sorted(path.name for path in (PACKAGE / "model").glob("*_vaswani.py"))


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


def unit_of(module: str) -> str:
    """The layered unit a module belongs to: the phrasebook is one, whatever its files; no command imports another."""
    if module.startswith("data.phrasebook"):
        return "data.phrasebook"
    return "commands" if module.startswith("commands.") and module not in SHARED_BY_COMMANDS else module


def own_imports(path: Path) -> set[str]:
    """Modules of the package that `path` imports, by their names inside it."""
    package = module_name(path).split(".")[:-1]
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ImportFrom):
            continue
        if node.level:
            parts = package[: len(package) - node.level + 1] + (node.module.split(".") if node.module else [])
        elif (node.module or "").startswith("vaswani_transformer"):
            parts = node.module.split(".")[1:]
        else:
            continue
        names = [[*parts, alias.name] for alias in node.names]
        for longer in names:
            module = longer if (PACKAGE.joinpath(*longer).with_suffix(".py")).exists() else parts
            found.add(unit_of(".".join(module)))
    return found - {""}


def test_every_file_imports_from_lower_layers_only():
    layer_of = {module: number for number, layer in enumerate(LAYERS) for module in layer}
    for path in PACKAGE.rglob("*.py"):
        unit = unit_of(module_name(path))
        if path.name == "__init__.py" and unit not in layer_of:
            assert not own_imports(path), f"{path} re-exports; only the package itself does"
            continue
        assert unit in layer_of, f"{unit} has no layer yet"
        for imported in own_imports(path) - ({unit} if unit == "data.phrasebook" else set()):
            assert layer_of[imported] < layer_of[unit], f"{unit} imports {imported}, which is not below it"


@pytest.mark.parametrize("name", FLAT_FILES)
def test_files_that_travel_with_a_model_import_only_each_other(name):
    allowed = {f"model.{Path(other).stem}" for other in FLAT_FILES}
    assert own_imports(PACKAGE / "model" / name) <= allowed
