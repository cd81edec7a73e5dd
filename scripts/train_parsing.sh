#!/usr/bin/env bash
# Constituency parsing (section 6.3), recipe parsing_small: prepare, train, parse, bracket F1.
#   bash scripts/train_parsing.sh FOLDER craft          treebank_craft: 27,000 trees of biomedical articles
#   bash scripts/train_parsing.sh FOLDER craft_and_text these trees, and news as PARSER parses it: semi-supervised
#   bash scripts/train_parsing.sh FOLDER wsj_sample     the free 10 % sample of the Penn Treebank: 3,914 trees
# FOLDER holds treebank_craft/{train,dev}.mrg, news_en-de/train.en and treebank_wsj_sample/wsj_sample.mrg, one tree or
# sentence per line. The sample is split by position: lines 1 to 3,314 to learn from, the next 300 for development, the
# last 300 for the score. Do not compare with the paper's F1, which is of Section 23 after training on the 40,000 trees of
# Sections 2 to 21.
# More arguments go to vaswani train. On one core an hour or more, a quarter of one for wsj_sample; the same command
# continues an interrupted run.
# In the environment, RUN names another run folder, PARSER another parser than model_cards/parsing_craft, and INIT_FROM
# a model whose weights and vocabulary training begins with; their paths start from the root of the repository. Another
# PARSER or INIT_FROM needs another RUN, and INIT_FROM a short warm-up and a lower rate:
#   INIT_FROM=model_cards/parsing_craft RUN=runs/parsing_tuned bash scripts/train_parsing.sh FOLDER wsj_sample \
#       --set warmup_updates=200 --set lr_scale=0.1 --set short_first=false
# For the paper's model and the Penn Treebank itself, on a GPU:
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
dev=$folder/treebank_craft/dev.mrg test=$folder/treebank_craft/dev.mrg num_updates=12000
train=(--train "$folder/treebank_craft/train.mrg")

# Sentences of 3 to 40 words, words apart as in treebanks: do n't, it 's.
split_words() {
    python -c 'import re, sys
from sacremoses import MosesTokenizer
tokenizer = MosesTokenizer("en")
for line in sys.stdin:
    text = re.sub(r"(?<=\w)n (?=\x27t\b)", " n", tokenizer.tokenize(line, return_str=True, escape=False))
    if 3 <= len(text.split()) <= 40:
        print(text)'
}

case $kind in
    craft) ;;
    craft_and_text)
        if [ ! -e "$run/news.mrg" ]; then
            mkdir -p "$run"
            split_words < "$folder/news_en-de/train.en" > "$run/news.txt"
            vaswani parse --model "${PARSER:-model_cards/parsing_craft}" --num_beams 4 --input "$run/news.txt" \
                --output "$run/partial"
            mv "$run/partial" "$run/news.mrg"
        fi
        train+=(--train "$run/news.mrg")
        ;;
    wsj_sample)
        sample=$folder/treebank_wsj_sample/wsj_sample.mrg
        dev=$run/dev.mrg test=$run/test.mrg num_updates=2000
        train=(--train "$run/train.mrg")
        mkdir -p "$run"
        take() { # lines, file; not written again when it is there: another start of this script may be reading it
            [ -e "$2" ] || { sed -n "$1p" "$sample" > "$run/partial" && mv "$run/partial" "$2"; }
        }
        take 1,3314 "$run/train.mrg"
        take 3315,3614 "$dev"
        take 3615,3914 "$test"
        ;;
    *) echo "the second argument is craft, craft_and_text or wsj_sample, got: $kind" >&2 && exit 1 ;;
esac

vaswani prepare --task parsing --copy_words --recipe parsing_small "${train[@]}" --dev "$dev" --output "$run/data" \
    ${INIT_FROM:+--keep_vocabulary "$INIT_FROM"}
vaswani train --recipe parsing_small --num_updates $num_updates --data "$run/data" --output "$run" --threads 2 \
    ${INIT_FROM:+--init_from "$INIT_FROM"} "${@:3}"
vaswani parse --model "$run" --gold "$test" --output "$run/parsed.mrg"
