#!/usr/bin/env bash
# Table 3, reduced: a quarter of the paper's widths, half of its layers and heads, on short sentences, so that one CPU
# core trains a row to its end, where the perplexity of the development set has not fallen for ten epochs: base in 45
# minutes with bfloat16, in 80 without, other rows in a quarter of an hour to three hours. Two rows at a time, a thread each.
#   bash scripts/table3_reduced.sh FOLDER [ROWS]
# FOLDER holds train and dev (.en .de) of tatoeba_en_de. ROWS are names such as "base base_seed1 C1"; all if not given.
#
# What tells of a finished row, some kB, goes to RESULTS/ROW, scripts/benchmarks/results/table3_reduced/ROW if not given.
# Commit it, and the row is done wherever the script is started again. RUN, runs/table3_reduced if not given, holds the
# prepared data and the rows under way. SIGTERM stops both after a save; with the same RUN the same command goes on.
set -euo pipefail
data=$(realpath "${1:?give the folder that the top of this file describes}")
# The spread of base first, because every other row is held against it; then the groups of the table in turns.
rows=${2:-base base_seed1 base_seed2 D1 C1 A1 C4 B1 D3 E A2 C6 D2 D4 C2}
cd "$(dirname "$0")/.."
# In an environment that has the package nothing is installed.
command -v vaswani > /dev/null || source scripts/setup_venv.sh plots
run=${RUN:-runs/table3_reduced}
results=${RESULTS:-scripts/benchmarks/results/table3_reduced}
export OMP_NUM_THREADS=1

# Emulated, bfloat16 takes 14 times as long as float32.
precision=no
if grep -q avx512_bf16 /proc/cpuinfo; then precision=bf16; fi

# With eleven checkpoints kept the oldest is that of the best epoch, once ten epochs were no better.
size=(--divide_widths 4 --set tokens_per_batch=2048 --set warmup_updates=800 --set lr_scale=0.5
    --set 'checkpoint_interval=[1, "epochs"]' --set patience=10 --set num_averaged_checkpoints=11
    --num_updates 1000000 --mixed_precision $precision --threads 1 --log_interval 500)

halve() { # the layers and heads of a row, and keep the ratio of B1's keys to those of base
    local layers=3 heads=4
    case $1 in
        A1) heads=1 ;;
        A2) heads=2 ;;
        C1) layers=1 ;;
        C2) layers=2 ;;
    esac
    echo --set model.encoder_layers=$layers --set model.decoder_layers=$layers --set model.num_heads=$heads
    if [ "$1" == B1 ]; then echo --set model.d_k=32; fi # --divide_widths makes 8 of it, and base has 32
}

is_done() { [ -e "$results/$1/dev_scores.txt" ]; }

train_row() { # name of a row, or of base with _seed and a number
    trap : TERM # meant for the training: wait until it has saved
    local seed=0 best
    if [[ $1 == *_seed* ]]; then seed=${1#*_seed}; fi
    vaswani train --recipe "table3_${1%_seed*}" --data "$run/data" --output "$run/$1" --seed "$seed" "${size[@]}" \
        $(halve "$1")
    best=$(ls -d "$run/$1"/checkpoints/step-* | head -n 1)
    vaswani evaluate --model "$best" --test "$data"/dev.{en,de} | sed "s|$run/||" > "$run/$1/dev_scores.txt"
    echo "processor $(lscpu | sed -n 's/^Model name: *//p')" >> "$run/$1/dev_scores.txt"
    mkdir -p "$results/$1"
    cp "$run/$1"/{recipe.json,log.jsonl,dev_scores.txt} "$results/$1/"
}

stop() {
    trap '' TERM INT
    kill -TERM -- $(jobs -rp | sed 's/^/-/') && wait
    echo "stopped; the same command goes on" >&2
    exit 75
}

mkdir -p "$run"
for side in en de; do
    awk 'NR % 6 == 1' "$data/train.$side" > "$run/train.$side" # the file is sorted by length
done
vaswani prepare --recipe base_en_de --vocab_size 4000 --output "$run/data" \
    --train "$run"/train.{en,de} --dev "$data"/dev.{en,de}

set -m # a row is a process group of its own, which SIGTERM reaches through `stop` alone
trap stop TERM INT
for row in $rows; do
    if is_done "$row"; then continue; fi
    while (($(jobs -rp | wc -l) == 2)); do wait -n || true; done
    echo "$(date +%H:%M) $row, log in $run/$row.log"
    train_row "$row" > "$run/$row.log" 2>&1 &
done
wait
trap - TERM INT

python scripts/print_table3.py "$results" | tee "$results/table.md"
python scripts/plot_table3.py "$results" --output "$results/curves.svg"
for row in $rows; do
    if ! is_done "$row"; then echo "$row is not done: see $run/$row.log" >&2 && exit 1; fi
done
