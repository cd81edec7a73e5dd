#!/usr/bin/env bash
# Reproduce a run: prepare its text, train, average, translate and score. The same command continues after an interruption.
#   bash scripts/train.sh NAME [FOLDER] [arguments of vaswani train]
#
# NAME                          FOLDER, of text files with one sentence per line
# base_en_de big_en_de          the paper's runs on WMT 2014 from the Hub, eight GPUs. FOLDER: parquet files with the
# big_en_fr                     same columns, named train*, validation* and test*, or another data set of the Hub
# iwslt14_de_en                 train, valid, test (.de .en): the files before byte-pair encoding, which fairseq's
#                               examples/translation/prepare-iwslt14.sh leaves in iwslt14.tokenized.de-en/tmp
# general_en_de_small           tatoeba_en_de, multi30k, europarl_en_de, news_en-de, each with train, the last also with
#                               newstest2013 and newstest2014. Do not compare the scores with the paper's: its training
#                               data are 4.5M pairs, these 228,000 others
# everyday_en_de                tatoeba_en_de, europarl_en_de, more_en_de/{the sources below}, each with train, the first
#                               also with dev, which is scored; model_cards/everyday_en_de
# multi30k_lc, multi30k_raw     train, val, test_2016_flickr, lower-cased and tokenised (.lc.norm.tok.en) or cased (.en)
# parsing_craft                 treebank_craft/{train,dev}.mrg; constituency parsing (section 6.3)
# parsing_craft_and_text        the same and news_en-de/train.en, parsed by PARSER (model_cards/parsing_craft)
# parsing_wsj_sample            treebank_wsj_sample/wsj_sample.mrg: 3,314 trees to learn from, 300 for development, 300 for
#                               the score. Do not compare it with the paper's, on Section 23 after 40,000 trees
#
# In the environment: RUN, the run folder (runs/NAME); PREPARED, a folder of prepared data that runs can share (RUN/data);
# INIT_FROM, a parser, or a model for everyday_en_de, to start from; OPUSTRAINER, the Python of an environment that has
# opustrainer, for everyday_en_de; LAUNCH, the command that starts the processes. Two processes on two CPU cores:
#   ACCELERATE_USE_CPU=true LAUNCH="torchrun --nproc_per_node 2 -m vaswani_transformer" \
#       bash scripts/train.sh everyday_en_de FOLDER --threads 1 --mixed_precision bf16
# The number of processes changes the time and the draws of dropout, nothing else; --accumulation_steps N needs less memory.
set -euo pipefail
name=${1:?give the name of a run: the top of this file has them}
shift
folder=
if [[ $# -gt 0 && $1 != -* ]]; then
    folder=$([ -e "$1" ] && realpath "$1" || echo "$1")
    shift
fi
cd "$(dirname "$0")/.."
# In an environment that has the package nothing is installed.
command -v vaswani > /dev/null || source scripts/setup_venv.sh plots

run=${RUN:-runs/$name} recipe=$name launch=vaswani
data=${PREPARED:-$run/data}
languages=(en de) texts=() prepare=() train=() tests=() score=()
if [[ $name != big_* && $name != base_* ]]; then : "${folder:?the run $name needs FOLDER: see the top of scripts/train.sh}"; fi

# Print sentences of 3 to 40 words, words apart as in treebanks: do n't, it 's.
split_words() {
    python -c 'import re, sys
from sacremoses import MosesTokenizer
tokenizer = MosesTokenizer("en")
for line in sys.stdin:
    text = re.sub(r"(?<=\w)n (?=\x27t\b)", " n", tokenizer.tokenize(line, return_str=True, escape=False))
    if 3 <= len(text.split()) <= 40:
        print(text)'
}

case $name in
    base_en_de | big_en_de | big_en_fr)
        languages=(en "${name##*_}")
        texts=("${folder:-wmt/wmt14:${name##*_}-en}")
        prepare=(--train "${texts[@]}" --dev "${texts[@]}") tests=("${texts[@]}")
        launch="accelerate launch --config_file scripts/accelerate/8_gpus.yaml -m vaswani_transformer"
        ;;
    iwslt14_de_en)
        languages=(de en) score=(--tokenize none)
        prepare=(--train "$folder/train".{de,en} --dev "$folder/valid".{de,en}) tests=("$folder/test".{de,en})
        ;;
    general_en_de_small)
        for corpus in tatoeba_en_de multi30k europarl_en_de news_en-de; do
            prepare+=(--train "$folder/$corpus/train".{en,de})
        done
        prepare+=(--dev "$folder/news_en-de/newstest2013".{en,de}) tests=("$folder/news_en-de/newstest2014".{en,de})
        ;;
    everyday_en_de)
        mkdir -p "$run"
        if [ ! -e "$run/text" ]; then # as people type it: the shares are in disturbed_text.json
            "${OPUSTRAINER:?name the Python of an environment that has opustrainer: pip install opustrainer}" scripts/disturb_text.py "$folder" "$run/partial"
            mv "$run/partial" "$run/text"
        fi
        for corpus in tatoeba_en_de europarl_en_de more_en_de/{debian_website,ethereum_org,fastapi_docs} \
            more_en_de/{mlqe_pe_wikipedia,mozilla_www,ms_dynamics365_business,ms_dynamics365_projops_insights}; do
            prepare+=(--train "$run/text/$corpus/train".{en,de})
        done
        tests=("$folder/tatoeba_en_de/dev".{en,de})
        prepare+=(--dev "${tests[@]}" ${INIT_FROM:+--keep_vocabulary "$INIT_FROM"})
        train=(${INIT_FROM:+--init_from "$INIT_FROM"})
        ;;
    multi30k_lc | multi30k_raw)
        recipe=multi30k_tiny infix=
        if [ "$name" = multi30k_lc ]; then infix=.lc.norm.tok score=(--tokenize none); fi
        prepare=(--train "$folder/train$infix".{en,de} --dev "$folder/val$infix".{en,de})
        tests=("$folder/val$infix".{en,de} "$folder/test_2016_flickr$infix".{en,de}) train=(--threads 2)
        ;;
    parsing_*)
        recipe=parsing_small train=(--threads 2 --num_updates 12000)
        texts=(--train "$folder/treebank_craft/train.mrg") tests=("$folder/treebank_craft/dev.mrg")
        dev=${tests[0]}
        mkdir -p "$run"
        if [ "$name" = parsing_craft_and_text ]; then
            texts+=(--train "$run/news.mrg")
            if [ ! -e "$run/news.mrg" ]; then
                split_words < "$folder/news_en-de/train.en" > "$run/news.txt"
                vaswani parse --model "${PARSER:-model_cards/parsing_craft}" --num_beams 4 --input "$run/news.txt" \
                    --output "$run/partial"
                mv "$run/partial" "$run/news.mrg"
            fi
        elif [ "$name" = parsing_wsj_sample ]; then
            texts=(--train "$run/train.mrg") dev=$run/dev.mrg tests=("$run/test.mrg") train=(--threads 2 --num_updates 2000)
            for part in 1,3314:train 3315,3614:dev 3615,3914:test; do # lines and name
                sed -n "${part%:*}p" "$folder/treebank_wsj_sample/wsj_sample.mrg" > "$run/${part#*:}.mrg"
            done
        fi
        prepare=(--task parsing --copy_words "${texts[@]}" --dev "$dev" ${INIT_FROM:+--keep_vocabulary "$INIT_FROM"})
        train+=(${INIT_FROM:+--init_from "$INIT_FROM"})
        ;;
    *) echo "there is no run $name: the top of scripts/train.sh has their names" >&2 && exit 1 ;;
esac

if [[ $name != parsing_* ]]; then
    languages=(--source_language "${languages[0]}" --target_language "${languages[1]}")
    prepare+=("${languages[@]}") score+=("${languages[@]}")
fi
vaswani prepare --recipe "$recipe" --output "$data" "${prepare[@]}"
${LAUNCH:-$launch} train --recipe "$recipe" --data "$data" --output "$run" "${train[@]}" "$@"
if [[ $name == parsing_* ]]; then
    vaswani parse --model "$run" --gold "${tests[0]}" --output "$run/parsed.mrg"
    exit
fi
for ((i = 0; i < ${#tests[@]}; i += 2)); do
    vaswani evaluate --model "$run" --test "${tests[@]:i:2}" "${score[@]}"
done
