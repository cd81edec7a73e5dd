#!/usr/bin/env bash
# IWSLT 2014 German-English, lower-cased and tokenised: prepare, train on one GPU, average, translate, score.
#   bash scripts/train_iwslt14_de_en.sh FOLDER [NUM_GPUS [arguments of vaswani train]]
# FOLDER holds train, valid and test (.de .en): what fairseq's examples/translation/prepare-iwslt14.sh leaves in
# iwslt14.tokenized.de-en/tmp, before its byte-pair encoding. BLEU is of tokenised text, as is published for this set.
# What else can be changed is in scripts/run_recipe.sh.
set -euo pipefail
folder=$(realpath "${1:?give the folder that the top of this file describes}")
shift
cd "$(dirname "$0")/.."
recipe=iwslt14_de_en
source scripts/run_recipe.sh

languages=(--source_language de --target_language en)
prepare --train "$folder/train".{de,en} --dev "$folder/valid".{de,en} "${languages[@]}"
train "${@:-1}"
vaswani evaluate --model "$run" --test "$folder/test".{de,en} "${languages[@]}" --tokenize none
