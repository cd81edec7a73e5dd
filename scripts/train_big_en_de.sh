#!/usr/bin/env bash
# The big model, English-German: prepare WMT 2014, train on eight GPUs, average, translate newstest2014, score.
#   bash scripts/train_big_en_de.sh [NUM_GPUS [arguments of vaswani train]]
# What else can be changed is in scripts/run_recipe.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
recipe=big_en_de
source scripts/run_recipe.sh

data=${DATA:-wmt/wmt14:de-en}
prepare --train "$data" --dev "$data"
train "${@:-8}"
translate_and_score --test "$data"
