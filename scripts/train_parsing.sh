#!/usr/bin/env bash
# Constituency parsing (section 6.3), recipe parsing_small: prepare, train, parse, bracket F1.
#   bash scripts/train_parsing.sh FOLDER craft          treebank_craft: 27,000 trees of biomedical articles
#   bash scripts/train_parsing.sh FOLDER wsj_sample     the free 10 % sample of the Penn Treebank: 3,914 trees
# FOLDER holds treebank_craft/{train,dev}.mrg and treebank_wsj_sample/wsj_sample.mrg, one tree a line. The sample is split
# by position: lines 1 to 3,314 to learn from, the next 300 for development, the last 300 for the score. Do not compare
# with the paper's F1, which is of Section 23 after training on the 40,000 trees of Sections 2 to 21.
# More arguments go to vaswani train. Hours on two cores; an interrupted run goes on when the command is given again.
# RUN in the environment names another run folder. For the paper's model and the Penn Treebank itself, on a GPU:
#   vaswani prepare --task parsing --recipe parsing_wsj --train wsj_02-21.mrg --dev wsj_22.mrg --output data
#   vaswani train --recipe parsing_wsj --data data --output runs/parsing_wsj --mixed_precision bf16
#   vaswani parse --model runs/parsing_wsj --gold wsj_23.mrg --unconstrained --output wsj_23.parsed.mrg
set -euo pipefail
folder=$(realpath "${1:?give the folder that the top of this file describes}")
kind=${2:-}
cd "$(dirname "$0")/.."
# In an environment that has the package nothing is installed.
command -v vaswani > /dev/null || source scripts/setup_venv.sh plots

run=${RUN:-runs/parsing_$kind}
case $kind in
    craft)
        train=$folder/treebank_craft/train.mrg dev=$folder/treebank_craft/dev.mrg test=$folder/treebank_craft/dev.mrg
        num_updates=12000
        ;;
    wsj_sample)
        sample=$folder/treebank_wsj_sample/wsj_sample.mrg
        train=$run/train.mrg dev=$run/dev.mrg test=$run/test.mrg
        num_updates=2000
        mkdir -p "$run"
        # Not written again when they are there: another start of this script may be reading them.
        [ -e "$train" ] || sed -n '1,3314p' "$sample" > "$train"
        [ -e "$dev" ] || sed -n '3315,3614p' "$sample" > "$dev"
        [ -e "$test" ] || sed -n '3615,3914p' "$sample" > "$test"
        ;;
    *) echo "the second argument is craft or wsj_sample, got: $kind" >&2 && exit 1 ;;
esac

vaswani prepare --task parsing --copy_words --recipe parsing_small --train "$train" --dev "$dev" --output "$run/data"
vaswani train --recipe parsing_small --num_updates $num_updates --data "$run/data" --output "$run" --threads 2 "${@:3}"
vaswani parse --model "$run" --gold "$test" --output "$run/parsed.mrg"
