#!/usr/bin/env bash
# Everyday English-German from text whose licences let weights be given away: prepare, train, average, translate, score.
#   bash scripts/train_everyday_en_de.sh FOLDER [NUM_PROCESSES [arguments of vaswani train]]
# FOLDER holds tatoeba_en_de and europarl_en_de, and in more_en_de the sources named below: each has train.en and
# train.de, tatoeba_en_de also dev.en and dev.de. Tatoeba's everyday sentences are seen twice per epoch; its
# development set is held out by English sentence, and the scores are of it. On two CPU cores:
#   ACCELERATE_CONFIG=scripts/accelerate/1_cpu.yaml bash scripts/train_everyday_en_de.sh FOLDER 1 --threads 2
# or, where processes are faster than threads:
#   ACCELERATE_CONFIG=scripts/accelerate/8_cpu_processes.yaml bash scripts/train_everyday_en_de.sh FOLDER 2 --threads 1
# model_cards/everyday_en_de was trained so; scripts/bundle_model.py made its folder of the run.
# What else can be changed is in scripts/run_recipe.sh.
set -euo pipefail
folder=$(realpath "${1:?give the folder that the top of this file describes}")
shift
cd "$(dirname "$0")/.."
recipe=everyday_en_de
source scripts/run_recipe.sh

more=(debian_website ethereum_org fastapi_docs mlqe_pe_wikipedia mozilla_www)
more+=(ms_dynamics365_business ms_dynamics365_projops_insights)
train_text=(--train "$folder/tatoeba_en_de/train".{en,de} --train "$folder/europarl_en_de/train".{en,de})
weights=(2 1)
for source in "${more[@]}"; do
    train_text+=(--train "$folder/more_en_de/$source/train".{en,de})
    weights+=(1)
done
prepare "${train_text[@]}" --weights "${weights[@]}" --dev "$folder/tatoeba_en_de/dev".{en,de}
train "${@:-1}"
translate_and_score --test "$folder/tatoeba_en_de/dev".{en,de}
