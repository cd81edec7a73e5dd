#!/usr/bin/env bash
# Passes the tests:  bash scripts/test.sh [arguments for pytest]
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup_venv.sh dev
ruff check .
ruff format --check .
python -m pytest "$@"
