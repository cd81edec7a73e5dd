#!/usr/bin/env bash
# Translates with the model that comes with the repository. Then it trains a model on the built-in corpus, scores it,
# translates with it and draws its attention.
#   bash scripts/demo.sh ["your sentence"]
# This takes about five minutes on two cores, and a few seconds the next time. All its files lie in runs/demo.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup_venv.sh plots

run=runs/demo
sentence=${1:-"The girl does not know whether he bought the house."}
pairs=40000
bundled=model_cards/everyday_en_de

show_translations() { # arguments: a model, then one or more sentences
    printf '%s\n' "${@:2}" | vaswani translate --model "$1" | paste -d '\n' <(printf '  %s\n' "${@:2}") - | sed 'n; s/^/  -> /'
}

echo "== Translate with $bundled, which was trained on real text"
if [ -e $bundled/model.safetensors ]; then
    show_translations $bundled "I have never seen such a beautiful house." "Where did you buy that red jacket?" "$sentence"
else
    echo "  left out: $bundled has no weights here; they come with a clone of the repository"
fi

echo "== Prepare: $pairs sentence pairs of the phrasebook, a synthetic English-German corpus"
[ -e $run/data/preparation.json ] ||
    vaswani prepare --recipe phrasebook --train phrasebook --dev phrasebook --num_pairs $pairs --output $run/data

echo "== Train"
[ -e $run/model/model.safetensors ] || vaswani train --recipe phrasebook --data $run/data --output $run

echo "== Score on sentences that never occur in training"
vaswani evaluate --model $run --test phrasebook --num_pairs 500

echo "== Translate with the trained model"
show_translations $run "Will he clean the kitchen?" "The farmers will thank the boy." "$sentence"
python - "$sentence" $pairs <<'E2'
import re
import sys

from vaswani_transformer.data.phrasebook.pairs import generate_pairs

sentence, num_pairs = sys.argv[1], int(sys.argv[2])
seen = set()
for english, _ in generate_pairs(split="train", num_pairs=num_pairs):
    seen.update(re.findall(r"\w+", english.lower()))
unknown = [word for word in re.findall(r"\w+", sentence) if word.lower() not in seen]
if unknown:
    print(f"  The model has never seen these words, and guesses their translation: {', '.join(unknown)}")
E2

echo "== Draw its attention"
vaswani attention --model $run --source "$sentence" --output $run/attention

cat <<E3

Continue with your own text. Write it into a file for each language, one sentence per line:
    source .venv/bin/activate
    vaswani prepare --recipe general_en_de_small --train train.en train.de --dev dev.en dev.de --output data
    vaswani train --data data --output runs/mine
    vaswani translate --model runs/mine --input new.en --output new.de
The recipe general_en_de_small is for 100,000 to 500,000 pairs, and trains for 1.6 hours on a CPU core with bfloat16. Use
multi30k_tiny for fewer pairs, everyday_en_de to train for four hours or more, and base_en_de for millions of pairs on
GPUs. The command "vaswani recipes" describes all recipes.
E3
