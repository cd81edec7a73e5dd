#!/usr/bin/env bash
# Multi30k English-German, recipe multi30k_tiny, as in the model cards: prepare, train, score on test2016.
#   bash scripts/train_multi30k.sh FOLDER lc     lower-cased, tokenised files; compares with published scores
#   bash scripts/train_multi30k.sh FOLDER raw    cased plain text
# FOLDER holds train, val and test_2016_flickr (.en .de, and .lc.norm.tok.en .lc.norm.tok.de). Several hours on two
# cores; an interrupted run goes on when the command is given again.
set -euo pipefail
data=$(realpath "$1")
kind=$2
cd "$(dirname "$0")/.."
source scripts/setup_venv.sh plots

case $kind in
    lc) infix=.lc.norm.tok tokenize=none ;;
    raw) infix= tokenize=13a ;;
    *) echo "the second argument is lc or raw, got: $kind" >&2 && exit 1 ;;
esac
run=runs/multi30k_$kind
pair() { echo "$data/$1$infix.en" "$data/$1$infix.de"; }

[ -e "$run/data/preparation.json" ] ||
    vaswani prepare --recipe multi30k_tiny --train $(pair train) --dev $(pair val) --output "$run/data"
vaswani train --recipe multi30k_tiny --data "$run/data" --output "$run" --threads 2
for split in val test_2016_flickr; do
    vaswani evaluate --model "$run" --test $(pair $split) --tokenize $tokenize
done
