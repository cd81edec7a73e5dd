#!/usr/bin/env bash
# Runs lint and tests:  bash scripts/test.sh [arguments for pytest]
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup_venv.sh dev
ruff check .
ruff format --check .
# Two processes; -n 0 uses one. The tests of a file stay together, because they share fixtures that take long to build.
# A process that ends is not replaced: after a test that hangs, a new process would run the same test again.
python -m pytest -n 2 --dist loadfile --max-worker-restart 0 "$@"
