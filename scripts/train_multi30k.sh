#!/usr/bin/env bash
# Multi30k English-German, recipe multi30k_tiny, as in the model cards: prepare, train, score on test2016.
#   bash scripts/train_multi30k.sh FOLDER lc     lower-cased, tokenised files; compares with published scores
#   bash scripts/train_multi30k.sh FOLDER raw    cased plain text
# FOLDER holds train, val and test_2016_flickr (.en .de, and .lc.norm.tok.en .lc.norm.tok.de). More arguments go to
# vaswani train. Several hours on two cores; an interrupted run goes on when the command is given again. RUN in the
# environment names another run folder.
set -euo pipefail
data=$(realpath "${1:?give the folder that the top of this file describes}")
kind=${2:-}
cd "$(dirname "$0")/.."
# In an environment that has the package nothing is installed.
command -v vaswani > /dev/null || source scripts/setup_venv.sh plots

case $kind in
    lc) infix=.lc.norm.tok tokenize=none ;;
    raw) infix= tokenize=13a ;;
    *) echo "the second argument is lc or raw, got: $kind" >&2 && exit 1 ;;
esac
run=${RUN:-runs/multi30k_$kind}

vaswani prepare --recipe multi30k_tiny --output "$run/data" \
    --train "$data/train$infix".{en,de} --dev "$data/val$infix".{en,de}
vaswani train --recipe multi30k_tiny --data "$run/data" --output "$run" --threads 2 "${@:3}"
for split in val test_2016_flickr; do
    vaswani evaluate --model "$run" --test "$data/$split$infix".{en,de} --tokenize $tokenize
done
