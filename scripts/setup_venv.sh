# Sourced by other scripts here: makes and enters .venv at the root of the repository.
# Usage: source setup_venv.sh EXTRA    installs the package with that extra; quick when it is there already.
# PYTHON names the interpreter to start from, python3 when not set.

extra=$1
python=${PYTHON:-python3}
if ! "$python" -c 'import sys; raise SystemExit(sys.version_info < (3, 11))'; then
    echo "Python 3.11 or newer is needed (transformers 5.23 requires it), found: $("$python" --version 2>&1)." >&2
    echo "Set PYTHON to a newer one, for example: PYTHON=python3.12 bash $0" >&2
    exit 1
fi

[ -x .venv/bin/python ] || "$python" -m venv .venv
source .venv/bin/activate

# What is installed is remembered by the files that say what to install.
stamp=".venv/installed-$extra-$(cat constraints.txt setup.py | cksum | cut -d' ' -f1)"
if [ ! -e "$stamp" ]; then
    echo "Installing into .venv (a few minutes the first time) ..." >&2
    # Torch on its own and first: resolved together with the rest, another build of it could be chosen.
    python -m pip install --quiet --constraint constraints.txt torch==2.13.0
    python -m pip install --quiet --constraint constraints.txt --editable ".[$extra]"
    touch "$stamp"
fi
