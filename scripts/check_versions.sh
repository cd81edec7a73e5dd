#!/usr/bin/env bash
# Runs all tests with the lowest versions that setup.py allows, with the pinned versions of constraints.txt, and with the
# newest versions. Each set of versions gets a new virtual environment, and one row of the table that is printed.
#   bash scripts/check_versions.sh [lowest] [pinned] [newest] [-- arguments for pytest]
# Each set takes about fifteen minutes. PYTHON names the interpreter that makes the environments; default: python3.
set -euo pipefail
unset PYTHONPATH
cd "$(dirname "$0")/.."
kinds=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do kinds+=("$1"); shift; done
[ $# -eq 0 ] || shift
[ ${#kinds[@]} -gt 0 ] || kinds=(lowest pinned newest)

lowest_versions() {
    "$1/bin/python" - <<'END'
import re
from importlib.metadata import requires

for line in requires("vaswani-transformer"):
    name, lowest = re.match(r"([\w-]+).*?>=([\d.]+)", line).groups()
    if name not in ("torch", "ruff") and ("extra ==" not in line or 'extra == "dev"' in line):
        print(f"{name}=={lowest}")
END
}

rows=()
for kind in "${kinds[@]}"; do
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    "${PYTHON:-python3}" -m venv "$folder"
    pip() { "$folder/bin/python" -m pip --quiet "$@"; }
    # Torch is installed first and alone. If it were resolved together with the rest, pip might choose another build.
    case $kind in
    lowest)
        pip install torch==2.13.0
        pip install --no-deps --editable .
        lowest_versions "$folder" | sort -u >"$folder/lowest.txt"
        pip install --requirement "$folder/lowest.txt"
        ;;
    pinned)
        pip install --constraint constraints.txt torch==2.13.0
        pip install --constraint constraints.txt --editable ".[dev]"
        ;;
    newest)
        pip install torch
        pip install --upgrade --upgrade-strategy eager --editable ".[dev]"
        ;;
    esac
    pip check || true
    log=$folder/log
    (
        source "$folder/bin/activate"  # tests call the command `vaswani`
        python -m pytest -p no:cacheprovider -n 2 --dist loadfile --max-worker-restart 0 "$@"
    ) | tee "$log" || true
    versions=$("$folder/bin/python" -c "
from importlib.metadata import version
print(' | '.join(version(name) for name in ('torch', 'transformers', 'datasets', 'peft')))")
    rows+=("| $kind | $versions | $(tail -n 1 "$log" | tr -d =) |")
    rm -rf "$folder"
done
printf '%s\n' "| versions | torch | transformers | datasets | peft | tests |" "|---|---|---|---|---|---|" "${rows[@]}"
