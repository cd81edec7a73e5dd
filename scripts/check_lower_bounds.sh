#!/usr/bin/env bash
# Installs the lowest versions that setup.py allows into a new virtual environment, and runs tests with them:
#   bash scripts/check_lower_bounds.sh [arguments for pytest]
# Takes about ten minutes. PYTHON names the interpreter to start from, python3 when not set.
set -euo pipefail
unset PYTHONPATH
cd "$(dirname "$0")/.."
tests=("$@")
[ $# -gt 0 ] || tests=(
    tests/unit tests/parity tests/property tests/integration/test_save_and_load.py tests/integration/test_pipeline.py
    --ignore tests/unit/test_export_checks.py  # needs the extra export
)

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder"
pip() { "$folder/bin/python" -m pip --quiet "$@"; }

# Torch on its own and first: resolved together with the rest, another build of it could be chosen.
pip install torch==2.13.0
pip install --no-deps --editable .
"$folder/bin/python" - >"$folder/lowest.txt" <<'END'
import re
from importlib.metadata import requires

RUNS_TESTS = ("pytest", "hypothesis", "matplotlib")  # of the extra dev
for line in requires("vaswani-transformer"):
    name, lowest = re.match(r"([\w-]+).*?>=([\d.]+)", line).groups()
    if name != "torch" and ("extra ==" not in line or name in RUNS_TESTS):
        print(f"{name}=={lowest}")
END
sort -u "$folder/lowest.txt"
pip install --requirement "$folder/lowest.txt"
pip check
"$folder/bin/python" -m pytest -p no:cacheprovider "${tests[@]}"
