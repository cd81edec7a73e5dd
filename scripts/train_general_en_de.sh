#!/usr/bin/env bash
# Everyday English-German from small corpora, 30M parameters: prepare, train on one GPU, average, translate, score.
#   bash scripts/train_general_en_de.sh FOLDER [NUM_GPUS [arguments of vaswani train]]
# FOLDER holds tatoeba_en_de, multi30k, europarl_en_de and news_en-de, each with train.en and train.de, the last also
# with newstest2013 and newstest2014. The scores are of the paper's test set, but DO NOT COMPARE with the paper's: it
# trained on the 4.5M pairs of WMT 2014, this on 228,000 others. On two CPU cores:
#   ACCELERATE_CONFIG=scripts/accelerate/1_cpu.yaml bash scripts/train_general_en_de.sh FOLDER 1 --threads 2
# In two hours one core with bfloat16 trains the narrower model of model_cards/general_en_de_small.md:
#   RECIPE=general_en_de_small ACCELERATE_CONFIG=scripts/accelerate/1_cpu.yaml bash scripts/train_general_en_de.sh FOLDER 1 --threads 1
# What else can be changed is in scripts/run_recipe.sh.
set -euo pipefail
folder=$(realpath "${1:?give the folder that the top of this file describes}")
shift
cd "$(dirname "$0")/.."
recipe=general_en_de
source scripts/run_recipe.sh

train_text=()
for corpus in tatoeba_en_de multi30k europarl_en_de news_en-de; do
    train_text+=(--train "$folder/$corpus/train".{en,de})
done
prepare "${train_text[@]}" --dev "$folder/news_en-de/newstest2013".{en,de}
train "${@:-1}"
translate_and_score --test "$folder/news_en-de/newstest2014".{en,de}
