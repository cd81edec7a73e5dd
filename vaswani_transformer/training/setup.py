"""Build the parts of a training run, such as data, model, optimizer and schedule."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import broadcast_object_list, parse_flag_from_env
from transformers import AutoModelForSeq2SeqLM, PreTrainedTokenizerFast

from ..data.batching import TokenizedPairs
from ..data.preparation import Prepared
from ..devices import allow_tf32, check_processes, choose_precision, compile_once, turn_off_cudnn_attention
from ..files import find_changes, find_damage
from ..kernels.cpu import speed_up_training
from ..kernels.window import WINDOW
from ..loading import load
from ..model.configuration_vaswani import VaswaniConfig
from ..model.modeling_vaswani import VaswaniForConditionalGeneration
from ..model.pipeline_vaswani import custom_pipelines
from ..runs import CHECKPOINTS_FOLDER, DEV_FILE, resumable_checkpoints
from .checkpoints import Checkpoints
from .development import DevelopmentSet
from .log import Log
from .optimizer import build_optimizer, inverse_sqrt_schedule
from .progress import Progress, Tally
from .recipes import Recipe, build_config, model_defaults

# The number of tokens, padding included, on each side of a micro-batch on a CPU. Larger micro-batches would not stay in
# the cache, and would need more padding.
TOKENS_PER_MICRO_BATCH = 4_096
# Fields in which the config of the recipe may differ from the config of `init_from`, because the meaning of weights
# does not depend on these fields. The vocabularies are compared separately.
MAY_DIFFER = {"dropout", "attention_dropout", "activation_dropout", "label_smoothing", "use_cache", "vocab_size"}


@dataclass(frozen=True)
class RunParts:
    """Everything that `loop.train` needs. `build_run` builds it."""

    recipe: Recipe  # with the values that depend on the device and the data
    description: dict  # the contents of recipe.json, except the versions of packages
    folder: Path  # the folder of the run
    accumulation_steps: int
    log_interval: int
    accelerator: Accelerator
    train_pairs: TokenizedPairs
    dev_set: DevelopmentSet
    model: torch.nn.Module  # as Accelerate wraps it
    forward: Callable  # what updates call: `model`, or its compiled form if the recipe says so
    optimizer: torch.optim.Optimizer  # as Accelerate wraps it
    schedule: torch.optim.lr_scheduler.LRScheduler
    progress: Progress
    tally: Tally
    log: Log
    checkpoints: Checkpoints


def build_run(
    recipe: Recipe,
    data: Prepared,
    run: Path,
    *,
    init_from: str | None = None,
    seed: int = 0,
    accumulation_steps: int | None = None,
    mixed_precision: str | None = None,
    log_interval: int = 50,
    report_to: str | None = None,
    score_dev: Callable[..., float] | None = None,
) -> RunParts:
    """Return the parts of a run. Nothing is written into `run` yet.

    Args:
        data: what `read_prepared` read.
        run: the folder to write, or to continue. All processes must see it.
        init_from: a model whose weights a new run starts from. A run that continues does not read it again.
        seed: the seed of initialisation, dropout and the order of the data.
        accumulation_steps: the number of micro-batches of an update on each process. It changes speed and memory, not
            results. By default it is 1 on a GPU. On a CPU it is chosen so that a micro-batch has about 4,096 tokens on
            each side.
        mixed_precision: "no", "bf16" or "fp16". By default it is the half precision that the launcher sets. If the
            launcher sets none, it is bf16 on a CUDA device that has it, and "no" on other devices. On CUDA, float32
            products use TF32.
        log_interval: the number of updates between two lines of the log.
        report_to: a tracker of Accelerate, such as "tensorboard" or "wandb". It gets the numbers of the log.
        score_dev: a function that computes BLEU of the development set at each evaluation. See `score` of
            `DevelopmentSet`.

    Raises:
        ModuleNotFoundError: if the package of the tracker is missing.
        ValueError: if a file of the data is damaged; if Accelerate does not know the tracker; if the launcher asks for
            FSDP or DeepSpeed; if `init_from` has another architecture than the recipe; or if `init_from` has another
            vocabulary than the data.
    """
    accelerator = _build_accelerator(mixed_precision, report_to, run)
    device = accelerator.device.type
    train_pairs, dev_pairs = _load_pairs(data, accelerator)
    preparation, tokenizer = data.description, data.tokenizer
    recipe = _complete_recipe(recipe, data, device)
    if accumulation_steps is None:
        accumulation_steps = _choose_accumulation_steps(recipe, accelerator)
    model, init_fingerprint = _build_model(
        recipe,
        tokenizer,
        accelerator,
        task=f"translation_{preparation['source_language']}_to_{preparation['target_language']}",
        seed=seed,
        init_from=None if resumable_checkpoints(run / CHECKPOINTS_FOLDER) else init_from,
    )
    optimizer = build_optimizer(model, recipe)
    schedule = inverse_sqrt_schedule(optimizer, d_model=model.config.d_model, warmup_steps=recipe.warmup_updates)
    progress = Progress()
    tally = Tally(accelerator)
    wrapped, accelerated = accelerator.prepare(model, optimizer)
    stateful = {"progress": progress, "optimizer": optimizer, "schedule": schedule, "tally": tally}
    if accelerator.scaler is not None:
        stateful["scaler"] = accelerator.scaler
    description = {
        "recipe": recipe.to_dict(),
        "seed": seed,
        "data": preparation["fingerprint"],
        "init_from": init_from,
        "init_fingerprint": init_fingerprint,
        "device": device,
        "mixed_precision": accelerator.mixed_precision,
        "num_processes": accelerator.num_processes,
        "num_parameters": model.num_parameters(),
    }
    return RunParts(
        recipe=recipe,
        description=description,
        folder=run,
        accumulation_steps=accumulation_steps,
        log_interval=log_interval,
        accelerator=accelerator,
        train_pairs=train_pairs,
        dev_set=DevelopmentSet(accelerator, dev_pairs, data.folder / DEV_FILE, tokenizer, score_dev),
        model=wrapped,
        forward=compile_once(wrapped) if recipe.compile else wrapped,
        optimizer=accelerated,
        schedule=schedule,
        progress=progress,
        tally=tally,
        log=Log(run, accelerator),
        checkpoints=Checkpoints(
            folder=run / CHECKPOINTS_FOLDER,
            accelerator=accelerator,
            model=model,
            tokenizer=tokenizer,
            progress=progress,
            stateful=stateful,
            keep=recipe.num_averaged_checkpoints,
        ),
    )


def _build_accelerator(mixed_precision: str | None, report_to: str | None, run: Path) -> Accelerator:
    """Return the accelerator of a run, after PyTorch is set up for the device of the accelerator."""
    for name in ("FSDP", "DEEPSPEED"):
        if parse_flag_from_env(f"ACCELERATE_USE_{name}"):
            raise ValueError(
                f"the launcher asks for {name}, but each process trains a whole model on one device: leave {name} out."
            )
    # Accelerate keeps the precision in `AcceleratorState`. A second run in the same process may have another precision,
    # so the state is reset. The Trainer of transformers also resets it.
    AcceleratorState._reset_state()
    # The device that `Accelerator` will choose below.
    device = PartialState(cpu=parse_flag_from_env("ACCELERATE_USE_CPU")).device.type
    turn_off_cudnn_attention(device)
    allow_tf32(device)
    accelerator = Accelerator(
        mixed_precision=choose_precision(mixed_precision, device),
        log_with=report_to,
        project_dir=run.resolve().parent,
        step_scheduler_with_optimizer=False,
        kwargs_handlers=[DistributedDataParallelKwargs(gradient_as_bucket_view=True)],  # Gradients are not copied.
    )
    if report_to is not None and not accelerator.log_with:  # Accelerate leaves a missing tracker out silently.
        raise ModuleNotFoundError(f"the package {report_to} is not installed", name=report_to)
    check_processes(accelerator.num_processes)
    return accelerator


def _load_pairs(data: Prepared, accelerator: Accelerator) -> list[TokenizedPairs]:
    """Return the training pairs and the development pairs."""
    is_first = accelerator.is_main_process
    (damage,) = broadcast_object_list([is_first and find_damage(data.folder, data.description["files"])])
    if damage:
        raise ValueError(f"{damage}. Copy the folder again, or remove it and run `vaswani prepare`.")
    pad_token_id = data.tokenizer.pad_token_id
    return [TokenizedPairs.load(data.folder / name, pad_token_id=pad_token_id) for name in ("train", "dev")]


def _complete_recipe(recipe: Recipe, data: Prepared, device: str) -> Recipe:
    """Return `recipe` with the values that the prepared data and the device decide."""
    return replace(
        recipe,
        vocab_size=len(data.tokenizer),
        subword_model=type(data.tokenizer.backend_tokenizer.model).__name__.lower(),
        max_length=data.description["max_length"],
        max_length_ratio=data.description["max_length_ratio"],
        compile=device == "cuda" if recipe.compile is None else recipe.compile,
    )


def _choose_accumulation_steps(recipe: Recipe, accelerator: Accelerator) -> int:
    """Return the number of micro-batches of an update on each process. `build_run` says how it is chosen."""
    if accelerator.device.type != "cpu":
        return 1
    return max(1, round(recipe.tokens_per_batch / accelerator.num_processes / TOKENS_PER_MICRO_BATCH))


def _build_model(
    recipe: Recipe,
    tokenizer: PreTrainedTokenizerFast,
    accelerator: Accelerator,
    *,
    task: str,
    seed: int,
    init_from: str | None,
) -> tuple[VaswaniForConditionalGeneration, str | None]:
    """Return the model before its first update, and the fingerprint of `init_from` (None without `init_from`)."""
    config = build_config(
        recipe.model,
        vocab_size=len(tokenizer),
        bos_token_id=tokenizer.bos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        decoder_start_token_id=tokenizer.bos_token_id,
        custom_pipelines=custom_pipelines(task),
    )
    torch.manual_seed(seed)  # All processes draw the same weights.
    model = AutoModelForSeq2SeqLM.from_config(config)  # The class of the config decides the class of the model.
    model.generation_config.num_beams = recipe.num_beams
    model.generation_config.length_penalty = recipe.length_penalty
    with TemporaryDirectory() as folder:  # Settings that cannot be saved raise an error here, not after hours.
        for part in (model.config, model.generation_config, tokenizer):
            part.save_pretrained(folder)
    if config.attention_window is not None:
        model.set_attn_implementation(WINDOW)
    if accelerator.device.type == "cpu":
        speed_up_training(model, is_half_precision=accelerator.mixed_precision != "no")
    init_fingerprint = None if init_from is None else _take_weights(model, init_from, tokenizer)
    torch.manual_seed(seed + accelerator.process_index)  # Dropout draws other numbers in each process.
    return model, init_fingerprint


def _take_weights(model: VaswaniForConditionalGeneration, name: str, tokenizer: PreTrainedTokenizerFast) -> str:
    """Copy the weights of the model called `name` into `model`; return the fingerprint of the copied model.

    Raises:
        ValueError: if the models differ in architecture or vocabulary.
    """
    _, trained, trained_tokenizer, fingerprint = load(name, dtype="float32")
    fields = {*VaswaniConfig.__annotations__, *model_defaults(model.config.model_type)} - MAY_DIFFER
    given, wanted = ({field: getattr(each.config, field, None) for field in fields} for each in (trained, model))
    if changes := list(find_changes(given, wanted)):
        raise ValueError(f"{name} has another architecture than the recipe: {'; '.join(changes)}. Change the recipe.")
    if trained_tokenizer.get_vocab() != tokenizer.get_vocab() or trained.config.vocab_size != model.config.vocab_size:
        raise ValueError(
            f"{name} has another vocabulary than {tokenizer.name_or_path}: prepare with --keep_vocabulary {name}."
        )
    if heads := getattr(trained.generation_config, "alignment_heads", None):
        model.generation_config.alignment_heads = heads
    model.load_state_dict(trained.state_dict())
    return fingerprint
