#!/usr/bin/env bash
# Passes the tests:  bash scripts/test.sh [arguments for pytest]
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup_venv.sh dev
ruff check .
ruff format --check .
# Two processes. A file's tests stay together, because they share what takes long to make; -n 0 takes one process.
# A process that ends, as one does whose test hangs, is not replaced: a new one would begin the same test again.
python -m pytest -n 2 --dist loadfile --max-worker-restart 0 "$@"
