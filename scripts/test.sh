#!/usr/bin/env bash
# Runs ruff and the tests:  bash scripts/test.sh [arguments for pytest]
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup_venv.sh dev
ruff check .
ruff format --check .
# The tests run in two processes; -n 0 runs them in one. The tests of a file run in the same process, because they share
# fixtures that take long to build. A process that is killed is not replaced: a new process would run the same test
# again, and hang again if the test hangs.
python -m pytest -n 2 --dist loadfile --max-worker-restart 0 "$@"
