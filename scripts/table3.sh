#!/usr/bin/env bash
# Table 3: train its rows on one prepared WMT 2014, score each on newstest2013 without averaging, print them beside the
# paper's, and say of each whether it moved away from base as it did there.
#   bash scripts/table3.sh [ROWS [NUM_GPUS [arguments of vaswani train]]]
# ROWS are names such as "base A1 E"; all if not given. Start it again to go on, or with other rows to add them. RUN,
# runs/table3 if not given, holds the prepared data, a folder for each row, and table.md.
#
# A row base_seed1 is base with --seed 1; two seeds or more say how far a row moves by chance. DATA may be a folder with
# train.en, train.de, val.en and val.de, and VOCAB_SIZE the entries of its vocabulary. All rows alike can be made
# smaller by arguments of vaswani train; table3_reduced.sh does so, for one CPU. To try the script within minutes:
#   DATA=phrasebook NUM_PAIRS=50 ACCELERATE_CONFIG=scripts/accelerate/1_cpu.yaml \
#       bash scripts/table3.sh "C1 C4" 1 --num_updates 2 --set tokens_per_batch=300 --mixed_precision no
# NUM_PAIRS is how many sentences of the phrasebook to train on and to score. What else can be changed is in
# scripts/run_recipe.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
RUN=${RUN:-runs/table3}
recipe=base_en_de
source scripts/run_recipe.sh

all="base A1 A2 A3 A4 B1 B2 C1 C2 C3 C4 C5 C6 C7 D1 D2 D3 D4 E big"
rows=${1:-$all}
data=${DATA:-wmt/wmt14:de-en}
train_text=("$data") dev_text=("$data")
if [ -e "$data/train.en" ]; then train_text=("$data"/train.{en,de}) dev_text=("$data"/val.{en,de}); fi

prepare --train "${train_text[@]}" --dev "${dev_text[@]}" ${VOCAB_SIZE:+--vocab_size "$VOCAB_SIZE"} \
    ${NUM_PAIRS:+--num_pairs "$NUM_PAIRS"}
for row in $rows; do
    recipe=table3_${row%_seed*} run=$RUN/$row seed=0
    if [[ $row == *_seed* ]]; then seed=${row#*_seed}; fi
    train "${2:-8}" --seed "$seed" "${@:3}"
    if [ ! -e "$run/dev_scores.txt" ]; then
        vaswani evaluate --model "$run" --test "${dev_text[@]}" --split validation \
            ${NUM_PAIRS:+--num_pairs "$NUM_PAIRS"} > "$run/scores.partial"
        mv "$run/scores.partial" "$run/dev_scores.txt"
    fi
done
python scripts/print_table3.py "$RUN" | tee "$RUN/table.md"
