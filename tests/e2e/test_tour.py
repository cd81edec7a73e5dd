"""The notebook tour_of_the_paper.ipynb can be executed, and its saved outputs equal those of the present code."""

import copy
import os
from itertools import groupby
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason='needs pip install ".[tour]"')
nbclient = pytest.importorskip("nbclient", reason='needs pip install ".[tour]"')

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "scripts/tour_of_the_paper.ipynb"
MOST_BYTES = 700_000
STALE = "the saved outputs of the notebook are out of date: execute it again with the command in scripts/README.md"
# The tag of cells that show a trained model. Their outputs vary, because processors round differently in training.
VARIES = "varies"


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def kinds(cell):
    """Return the kinds of the outputs of `cell`: the name of a stream, the formats of a picture, or "error".

    Successive outputs of one kind count once, because the times of flushing decide how often a stream is split.
    """
    found = [output.get("name") or " ".join(sorted(output.get("data", ()))) or "error" for output in cell.outputs]
    return [kind for kind, _ in groupby(found)]


def texts(cell):
    """Return the text that `cell` prints, and then the texts that it displays. Pictures are left out."""
    printed = "".join(output.text for output in cell.outputs if output.output_type == "stream")
    displayed = [
        output.data[format]
        for output in cell.outputs
        for format in sorted(output.get("data", ()))
        if format.startswith("text/")
    ]
    return [printed, *displayed]


@pytest.fixture(scope="module")
def saved():
    return nbformat.read(NOTEBOOK, as_version=4)


@pytest.fixture(scope="module")
def executed(saved, bundled_model, tmp_path_factory):
    """Return the notebook with new outputs, executed from the first cell in an empty folder."""
    folder = tmp_path_factory.mktemp("tour")
    notebook = copy.deepcopy(saved)
    for cell in code_cells(notebook):
        cell.outputs, cell.execution_count = [], None
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    client = nbclient.NotebookClient(notebook, timeout=None, resources={"metadata": {"path": str(folder)}})
    # In a new folder, IPython does not read the start-up files and settings of the user.
    client.execute(env=os.environ | {"PYTHONPATH": path, "IPYTHONDIR": f"{folder}/ipython", "HF_HUB_OFFLINE": "1"})
    return notebook


@pytest.mark.slow
def test_every_cell_runs_and_gives_its_saved_output(saved, executed):
    for before, now in zip(code_cells(saved), code_cells(executed), strict=True):
        assert not {"error", "stderr"} & {*kinds(now)}, now.id
        assert now.execution_count is not None, now.id
        assert before.execution_count == now.execution_count, f"{STALE} ({before.id})"
        assert kinds(before) == kinds(now), f"{STALE} ({before.id})"
        if VARIES not in before.metadata.get("tags", ()):
            assert texts(before) == texts(now), f"{STALE} ({before.id})"


def test_the_saved_notebook_is_small_and_names_no_local_folder(saved):
    assert NOTEBOOK.stat().st_size < MOST_BYTES
    shown = "\n".join(text for cell in code_cells(saved) for text in texts(cell))
    for place in (str(ROOT), str(Path.home()), "/tmp", "/home", "site-packages"):
        assert place not in shown
