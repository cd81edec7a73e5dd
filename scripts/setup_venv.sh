# Makes and activates .venv in the root of the repository. Installs the package, and the optional packages that setup.py
# lists under the name EXTRA.
#   source scripts/setup_venv.sh EXTRA
# Source this file in the root of the repository. If everything is installed already, this takes no time.
# PYTHON names the interpreter that makes the environment; default: python3.

extra=$1
python=${PYTHON:-python3}
if ! "$python" -c 'import sys; raise SystemExit(sys.version_info < (3, 11))'; then
    echo "Python 3.11 or newer is needed, because transformers 5.23 needs it. $python is $("$python" --version 2>&1)." >&2
    echo "Set PYTHON to a newer interpreter, for example with: export PYTHON=python3.12" >&2
    return 1
fi

[ -x .venv/bin/python ] || "$python" -m venv .venv
source .venv/bin/activate

# An empty file records what is installed. Its name changes with constraints.txt and setup.py.
stamp=".venv/installed-$extra-$(cat constraints.txt setup.py | cksum | cut -d' ' -f1)"
if [ ! -e "$stamp" ]; then
    echo "Installing into .venv (a few minutes the first time) ..." >&2
    # Torch is installed first and alone. If it were resolved together with the rest, pip might choose another build.
    python -m pip install --quiet --constraint constraints.txt torch==2.13.0
    python -m pip install --quiet --constraint constraints.txt --editable ".[$extra]"
    touch "$stamp"
fi
