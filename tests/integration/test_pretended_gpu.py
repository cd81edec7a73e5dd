"""An update and a search step cost a GPU no more operations, waits and copies than recorded.

scripts/pretended_gpu counts them on a device that only pretends to be a GPU. It also counts operations that mix tensors
of the host and of the device ("mixed"), which CUDA would refuse.
"""

import json
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "scripts/pretended_gpu"
# A process cannot remove the pretended device again, so this program has a process of its own. `count_search` raises an
# error if the search finds other tokens than on the CPU.
PROGRAM = """
import json
from count import count_search, count_update
update = count_update("base_en_de")
_, steps, num_steps = count_search(num_sentences=24, num_beams=4, num_steps=14)
totals = [{kind: events.total() for kind, events in vars(counts).items()} for counts in (update, steps)]
print(json.dumps([*totals, num_steps]))
"""
# If a change lowers a count, lower its bound too.
# Operations of an update of 6 + 6 layers in float32.
MOST_OPERATIONS = 737
MOST_OPERATIONS_OF_STEP = 127  # a step of the search, with 6 decoder layers


def test_updates_and_search_steps_need_no_more_operations_waits_and_copies_than_recorded():
    command = [sys.executable, "-c", PROGRAM]
    output = subprocess.run(command, cwd=FOLDER, check=True, capture_output=True, text=True).stdout
    update, steps, num_steps = json.loads(output.splitlines()[-1])
    assert (update["waits"], update["mixed"], update["copies"]) == (0, 0, 3)
    assert 500 < update["operations"] <= MOST_OPERATIONS
    assert steps["mixed"] == 0
    assert steps["waits"] <= 3 * num_steps
    assert 50 * num_steps < steps["operations"] <= MOST_OPERATIONS_OF_STEP * num_steps
