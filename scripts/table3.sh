#!/usr/bin/env bash
# Table 3: train its rows on the same data, score each on the development set, and print them beside the paper's.
#   bash scripts/table3.sh [ROWS [arguments of vaswani train]]       WMT 2014, at the paper's size, on eight GPUs
#   bash scripts/table3.sh --reduced FOLDER [ROWS [arguments ...]]   a quarter of the widths, one CPU core
# ROWS are names such as "base A1 E"; base_seed1 is base with --seed 1, and two seeds or more say how far a row moves by
# chance. The same command continues. LAUNCH in the environment starts the processes, as in train.sh.
#
# --reduced also halves layers and heads, and trains each row to its end on short sentences: until the perplexity has not
# fallen for ten epochs, which takes a quarter of an hour to three hours; --mixed_precision bf16 is faster where the
# processor computes in it. FOLDER holds train and dev (.en .de) of tatoeba_en_de. Start it twice, with other ROWS, to use
# two cores. A finished row leaves some kB in RESULTS, scripts/benchmarks/results/table3_reduced if not set: commit it, and
# the row is done wherever the script is started again. RUN, runs/table3_reduced if not set, holds the rows under way.
set -euo pipefail
reduced=false
if [ "${1:-}" = --reduced ]; then
    reduced=true folder=$(realpath "${2:?give the folder of tatoeba_en_de}")
    shift 2
fi
cd "$(dirname "$0")/.."
# In an environment that has the package nothing is installed.
command -v vaswani > /dev/null || source scripts/setup_venv.sh plots

rows=${1:-base A1 A2 A3 A4 B1 B2 C1 C2 C3 C4 C5 C6 C7 D1 D2 D3 D4 E big}
run=${RUN:-runs/table3} results=${RUN:-runs/table3} dev=(wmt/wmt14:de-en --split validation)
launch="accelerate launch --config_file scripts/accelerate/8_gpus.yaml -m vaswani_transformer"
text=(--train "${dev[0]}" --dev "${dev[0]}") size=() plot=()
if $reduced; then
    rows=${1:-base base_seed1 base_seed2 D1 C1 A1 C4 B1 D3 E A2 C6 D2 D4 C2}
    run=${RUN:-runs/table3_reduced} results=${RESULTS:-scripts/benchmarks/results/table3_reduced} launch=vaswani
    dev=("$folder"/dev.{en,de}) plot=(--plot "$results/curves.svg")
    mkdir -p "$run"
    for side in en de; do
        awk 'NR % 6 == 1' "$folder/train.$side" > "$run/train.$side" # the file is sorted by length
    done
    text=(--train "$run"/train.{en,de} --dev "${dev[@]}" --vocab_size 4000)
    # With eleven checkpoints kept the oldest is that of the best epoch, once ten epochs were no better.
    size=(--divide_widths 4 --set tokens_per_batch=2048 --set warmup_updates=800 --set lr_scale=0.5
        --set 'checkpoint_interval=[1, "epochs"]' --set patience=10 --set num_averaged_checkpoints=11
        --num_updates 1000000 --threads 1 --log_interval 500)
fi

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

vaswani prepare --recipe base_en_de --output "$run/data" "${text[@]}"
for row in $rows; do
    if [ -e "$results/$row/dev_scores.txt" ]; then continue; fi
    seed=0 model=$run/$row halved=()
    if [[ $row == *_seed* ]]; then seed=${row#*_seed}; fi
    if $reduced; then halved=($(halve "$row")); fi
    ${LAUNCH:-$launch} train --recipe "table3_${row%_seed*}" --data "$run/data" --output "$run/$row" --seed "$seed" \
        "${size[@]}" "${halved[@]}" "${@:2}"
    if $reduced; then model=$(ls -d "$run/$row"/checkpoints/step-* | head -n 1); fi
    mkdir -p "$results/$row"
    vaswani evaluate --model "$model" --test "${dev[@]}" | sed "s|$run/||" > "$run/$row/scores.partial"
    if $reduced; then
        echo "processor $(lscpu | sed -n 's/^Model name: *//p')" >> "$run/$row/scores.partial"
        cp "$run/$row"/{recipe.json,log.jsonl} "$results/$row/"
    fi
    mv "$run/$row/scores.partial" "$results/$row/dev_scores.txt"
done
python scripts/print_table3.py "$results" "${plot[@]}" | tee "$results/table.md"
