#!/usr/bin/env bash
# Builds sdist and wheel, checks what they hold, installs each in an empty environment and runs `vaswani` there.
#   bash scripts/check_package.sh [MODEL]
# MODEL is the model that translates a sentence in each environment; default: an untrained model.
# This takes about ten minutes. PYTHON names the interpreter that makes the environments; default: python3.
set -euo pipefail
unset PYTHONPATH
cd "$(dirname "$0")/.."
model=$([ $# -eq 0 ] || realpath "$1")

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
new_environment() { "${PYTHON:-python3}" -m venv "$folder/$1"; }

new_environment tools
"$folder/tools/bin/python" -m pip --quiet install build twine
"$folder/tools/bin/python" -m build --outdir "$folder/dist" . >"$folder/build.log" || { cat "$folder/build.log"; exit 1; }
"$folder/tools/bin/python" -m twine check --strict "$folder"/dist/*

"$folder/tools/bin/python" - "$folder"/dist/*.whl "$folder"/dist/*.tar.gz <<'END'
import sys
import tarfile
import zipfile

wheel = zipfile.ZipFile(sys.argv[1]).namelist()
foreign = [name for name in wheel if not name.startswith(("vaswani_transformer/", "vaswani_transformer-", "vaswani_cli.py"))]
assert not foreign, f"the wheel holds files that do not belong to the package: {foreign}"
for name in ("attention/page.html", "data/phrasebook/lexicon.txt", "hub/card_template.md", "model/modeling_vaswani.py"):
    assert f"vaswani_transformer/{name}" in wheel, f"the wheel lacks {name}"
sdist = {name.partition("/")[2] for name in tarfile.open(sys.argv[2]).getnames()}
for name in ("scripts/demo.sh", "tests/conftest.py", "model_cards/README.md", "constraints.txt", "CITATION.cff"):
    assert name in sdist, f"the sdist lacks {name}"
weights = [name for name in (*wheel, *sdist) if name.endswith(".safetensors")]
assert not weights, f"wheel or sdist holds weights, which belong to the repository only: {weights}"
print(f"{len(wheel)} files in the wheel, {len(sdist)} in the sdist")
END

for package in "$folder"/dist/*; do
    name=$(basename "$package")
    new_environment "$name-env"
    bin=$folder/$name-env/bin
    # Torch is installed first and alone. If it were resolved with the rest, pip might choose another build of it.
    "$bin/python" -m pip --quiet install torch==2.13.0
    "$bin/python" -m pip --quiet install --constraint constraints.txt "$package"
    cd "$folder" # in the repository, Python would import the files there, not the installed files
    "$bin/vaswani" --version
    if [ -z "$model" ]; then
        model=$folder/model
        "$bin/python" - "$model" <<'END'
import sys

from vaswani_transformer import VaswaniConfig, VaswaniForConditionalGeneration, train_tokenizer

tokenizer = train_tokenizer(["a dog runs"] * 3, vocab_size=290)
config = VaswaniConfig(vocab_size=len(tokenizer), d_model=16, d_ff=24, num_heads=4)
VaswaniForConditionalGeneration(config).save_pretrained(sys.argv[1])
tokenizer.save_pretrained(sys.argv[1])
END
    fi
    echo "A dog runs." | "$bin/vaswani" translate --model "$model"
    "$bin/python" -c 'import sys, vaswani_transformer, transformers
print(transformers.pipeline("translation", model=sys.argv[1])("A dog runs."))' "$model"
    cd - >/dev/null
    rm -rf "$folder/$name-env"
    echo "ok: $name"
done
