# Sourced by most scripts/train_*.sh and table3.sh, at the root of the repository, with `recipe` set: a recipe from text
# to scores. A run that was interrupted goes on when its script is started again with the same arguments.
#
# The number of GPUs changes the time and the draws of dropout, nothing else: an update is the recipe's tokens_per_batch
# over all of them together. Where fewer lack the memory, --accumulation_steps N makes the same update in N parts.
#
# To be set in the environment, paths from the root of the repository or absolute:
#   DATA                instead of WMT 2014: another dataset of the Hub, or a folder of parquet files with the same
#                       columns, named train*, validation* and test*
#   RUN                 folder of the run; runs/NAME_OF_THE_RECIPE if not given
#   PREPARED            folder of the prepared data, which runs of equal vocabulary and limits can share; made if it is
#                       not there; RUN/data if not given
#   RECIPE              another recipe on the same data
#   ACCELERATE_CONFIG   how to start the processes; scripts/accelerate/8_gpus.yaml if not given. To try a script on a
#                       machine without GPUs: scripts/accelerate/8_cpu_processes.yaml

# In an environment that has the package nothing is installed.
command -v vaswani > /dev/null || source scripts/setup_venv.sh plots

recipe=${RECIPE:-$recipe}
run=${RUN:-runs/$recipe}
prepared=${PREPARED:-$run/data}
config=${ACCELERATE_CONFIG:-scripts/accelerate/8_gpus.yaml}
precision=bf16
if grep -q '^use_cpu: true' "$config"; then
    export ACCELERATE_USE_CPU=true # Accelerate does not hand this on when it starts several processes
    # Emulated, bfloat16 takes 14 times as long as float32.
    grep -q avx512_bf16 /proc/cpuinfo || precision=no
fi

prepare() { # arguments of vaswani prepare
    vaswani prepare --recipe "$recipe" --output "$prepared" "$@"
}

train() { # number of processes, arguments of vaswani train
    accelerate launch --config_file "$config" --num_processes "$1" -m vaswani_transformer train \
        --recipe "$recipe" --data "$prepared" --output "$run" --mixed_precision $precision "${@:2}"
}

translate_and_score() { # arguments of vaswani evaluate
    vaswani evaluate --model "$run" --translations "$run/translations.txt" "$@"
}
