"""The parts of a training: prepared data, model, optimizer and schedule."""

import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import accelerate
import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import ProjectConfiguration, broadcast_object_list, parse_flag_from_env
from torch.utils.data import DataLoader
from transformers import PreTrainedTokenizerFast

from ..data.batching import TokenizedPairs, Update, UpdateStream
from ..data.preparation import DEV_FILE, PREPARATION_FILE, read_preparation
from ..devices import allow_tf32, avoid_plans_per_shape, check_processes, choose_precision, compile_once, has_bfloat16
from ..files import find_changes, find_damage
from ..loading import fingerprint_model, load_translator
from ..memory import keep_few_kernels
from ..model.configuration_vaswani import VaswaniConfig
from ..model.modeling_vaswani import VaswaniForConditionalGeneration
from ..model.pipeline_vaswani import MODEL_FOLDER, custom_pipelines
from .checkpoints import CHECKPOINTS_FOLDER, resumable_checkpoints
from .development import DevelopmentSet
from .interruption import outlive_stop_request
from .log import TRACKER_FOLDER, Log, check_trackers
from .recipes import OF_THE_VOCABULARY, RECIPES, Recipe
from .schedule import inverse_sqrt_schedule
from .sharding import is_sharded, reduce_in_float32
from .state import Progress, TrainingState
from .tally import Tally

TOKENS_PER_MICRO_BATCH = {"cpu": 4_096}  # padded tokens per side
# Processes that prepare batches. On a CPU one would take a core from the training; one is enough for any GPU. Where
# there is MPS, processes are not forked, and a worker would get a copy of the corpus.
LOADER_WORKERS = {"cpu": 0, "mps": 0}
DEFAULT_LOADER_WORKERS = 1
# Whether batches have few shapes where the recipe does not say: graphs and plans are made for each shape there.
BUCKETED = {"cuda": True}
# Fields of a model that may change between two trainings: they do not change what its weights mean.
OF_TRAINING = {"dropout", "attention_dropout", "activation_dropout", "label_smoothing", "use_cache"}


def describe_recipe(recipe: Recipe) -> str:
    """The name of the recipe that is nearest to `recipe`, and what differs from it."""
    # Where they were left open they follow from the device, and the line "training on" tells them.
    of_device = {"compile": recipe.compile, "bucketed": recipe.bucketed}
    changes = {
        name: list(find_changes(known.to_dict() | of_device, recipe.to_dict())) for name, known in RECIPES.items()
    }
    name = min(changes, key=lambda name: len(changes[name]))
    return ", ".join([name, *changes[name]])


class Setup:
    """Settings of a run, and the objects built from them.

    Args:
        data: folder written by `vaswani prepare`.
        run: folder to write, or to go on with; all processes must see it.
        init_from: model folder, run folder or Hub id whose weights a new run starts from; one that goes on does not
            read it again.
        seed: of initialisation, dropout and the order of the data.
        accumulation_steps: micro-batches per update on each process; changes speed and memory, not results. When not
            given: one on a GPU, on a CPU as many as keep them at about 4,096 tokens.
        mixed_precision: "no", "bf16" or "fp16". When not given: the launcher's half precision, or else bf16 on a CUDA
            device that has it, "no" on others. On CUDA float32 products use TF32.
        log_interval: updates between two lines of the log.
        report_to: trackers of Accelerate that get the same lines, such as "tensorboard".
        score_dev: as `score` of `DevelopmentSet`: BLEU of the development set, logged at each evaluation.
        change_processes: go on with a run that another number of processes began. No pair is skipped or repeated,
            but dropout draws other numbers.

    Raises:
        FileNotFoundError: if `data` is no prepared data.
        ValueError: if a file of the data is missing or damaged, if the processes do not know each other, if the
            package of a tracker is missing, if the recipe's `vocab_size` is smaller than the data's, if `init_from` has
            another architecture than the recipe or another vocabulary than the data, or if there is a `score_dev` for a
            sharded model.
    """

    def __init__(
        self,
        recipe: Recipe,
        data: Path,
        run: Path,
        *,
        init_from: str | None = None,
        seed: int = 0,
        accumulation_steps: int | None = None,
        mixed_precision: str | None = None,
        log_interval: int = 50,
        report_to: Sequence[str] = (),
        score_dev: Callable[..., float] | None = None,
        change_processes: bool = False,
    ):
        self.data, self.run_folder, self.seed = data, run, seed
        self.log_interval, self.change_processes, self.init_from = log_interval, change_processes, init_from
        self.checkpoint_folder, self.model_folder = run / CHECKPOINTS_FOLDER, run / MODEL_FOLDER
        check_trackers(report_to)
        # Accelerate keeps the precision of the process here, and a process may train again in another one.
        # transformers' Trainer does the same.
        AcceleratorState._reset_state()
        device = PartialState(cpu=parse_flag_from_env("ACCELERATE_USE_CPU")).device.type  # as Accelerator makes it
        avoid_plans_per_shape(device)
        allow_tf32(device)
        launched = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
        self.accelerator = Accelerator(
            mixed_precision=choose_precision(
                mixed_precision, launched=launched, device=device, has_bfloat16=has_bfloat16()
            ),
            log_with=list(report_to) or None,
            project_config=ProjectConfiguration(logging_dir=str(run / TRACKER_FOLDER)),
            step_scheduler_with_optimizer=False,
            kwargs_handlers=[DistributedDataParallelKwargs(gradient_as_bucket_view=True)],  # no copy of the gradients
        )
        self.mixed_precision = self.accelerator.mixed_precision  # later that of the newest accelerator
        if recipe.compile is None:
            # FSDP gathers weights in hooks of the layers, which break the graph.
            recipe = replace(recipe, compile=device == "cuda" and not is_sharded(self.accelerator))
        if device == "cpu" and self.mixed_precision != "no":
            keep_few_kernels()
        reduce_in_float32(self.accelerator)
        check_processes(self.accelerator.num_processes)
        if recipe.bucketed is None:
            recipe = replace(recipe, bucketed=BUCKETED.get(device))
        self.recipe = recipe
        if accumulation_steps is None:
            # A GPU wants large products; on a CPU smaller micro-batches stay in the cache, and they pad less.
            limit = TOKENS_PER_MICRO_BATCH.get(device, math.inf)
            accumulation_steps = max(1, round(recipe.tokens_per_batch / self.accelerator.num_processes / limit))
        if accumulation_steps < 1:
            raise ValueError(f"accumulation_steps must be at least 1, one micro-batch; got {accumulation_steps}.")
        self.accumulation_steps = accumulation_steps
        self.preparation = read_preparation(data)
        is_main = self.accelerator.is_main_process
        (damage,) = broadcast_object_list([find_damage(data, self.preparation["files"]) if is_main else ""])
        if damage:
            raise ValueError(f"{damage}. Copy the folder again, or remove it and run `vaswani prepare`.")
        self.tokenizer = PreTrainedTokenizerFast.from_pretrained(data, trust_remote_code=False)
        self.train_pairs = self._load_pairs("train")
        self.dev_set = DevelopmentSet(
            self.accelerator, self._load_pairs("dev"), data / DEV_FILE, self.tokenizer, score=score_dev
        )
        self.init_fingerprint: str | None = None
        self.progress = Progress(num_processes=self.accelerator.num_processes)
        self.tally = Tally(self.accelerator)
        self.log = Log(run, self.accelerator)
        self._build()
        self.state = TrainingState(
            self.accelerator,
            self.checkpoint_folder,
            self.model,
            self.optimizer.optimizer,
            self.tokenizer,
            schedule=self.schedule,
            progress=self.progress,
            tally=self.tally,
        )

    def _load_pairs(self, name: str) -> TokenizedPairs:
        """A prepared set, "train" or "dev"; refused if a pair is missing."""
        pairs = TokenizedPairs.load(self.data / name, pad_token_id=self.tokenizer.pad_token_id)
        expected = self.preparation[name]["pairs"]
        if len(pairs) != expected:
            raise ValueError(
                f"{self.data / name} holds {len(pairs)} pairs, but {PREPARATION_FILE} counts {expected}: a part is "
                f"missing or foreign. Copy the folder again, or remove it and run `vaswani prepare`."
            )
        return pairs

    def _build(self) -> None:
        """Model, optimizer (section 5.3) and schedule."""
        recipe = self.recipe
        accelerate.utils.set_seed(self.seed)  # the same weights everywhere ...
        model = self._build_model()
        if self.init_from is not None and not resumable_checkpoints(self.checkpoint_folder):
            self._take_weights(model, self.init_from)
        accelerate.utils.set_seed(self.seed, device_specific=True)  # ... but other dropout
        # Without weight decay this is the paper's Adam to the bit.
        optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=recipe.lr_scale,
            betas=recipe.adam_betas,
            eps=recipe.adam_eps,
            weight_decay=recipe.weight_decay,
            fused=True,
        )
        d_model = model.config.d_model
        self.schedule = inverse_sqrt_schedule(optimizer, d_model=d_model, warmup_steps=recipe.warmup_updates)
        self.model, self.optimizer = self.accelerator.prepare(model, optimizer)
        self.parameters = list(self.model.parameters())  # to walk all modules for them takes 1 ms of the host
        # What an update calls; evaluation, search and diagnosis call the model itself.
        self.forward = compile_once(self.model) if recipe.compile else self.model

    def _build_model(self) -> VaswaniForConditionalGeneration:
        recipe, tokenizer = self.recipe, self.tokenizer
        if recipe.model.get("vocab_size", len(tokenizer)) < len(tokenizer):
            raise ValueError(
                f"model.vocab_size is {recipe.model['vocab_size']}, but the vocabulary of {self.data} has "
                f"{len(tokenizer)} entries: give at least as many, or leave it out."
            )
        config = VaswaniConfig(
            **{"vocab_size": len(tokenizer)} | recipe.model,
            bos_token_id=tokenizer.bos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
            decoder_start_token_id=tokenizer.bos_token_id,
        )
        task = f"translation_{self.preparation['source_language']}_to_{self.preparation['target_language']}"
        config.custom_pipelines = custom_pipelines(task)
        model = VaswaniForConditionalGeneration(config)
        model.generation_config.num_beams = recipe.num_beams
        model.generation_config.length_penalty = recipe.length_penalty
        if is_sharded(self.accelerator):
            # One module instead of three that share a matrix: FSDP2 keeps a matrix in one group of modules.
            model.set_input_embeddings(model.get_input_embeddings())
        return model

    def _take_weights(self, model: VaswaniForConditionalGeneration, name: str) -> None:
        """Load the weights of the trained model `name` into `model`."""
        trained, tokenizer = load_translator(name, dtype="float32")
        fields = VaswaniConfig.__annotations__.keys() - OF_TRAINING - {"vocab_size"}
        theirs, ours = ({field: getattr(it.config, field) for field in fields} for it in (trained, model))
        if changes := list(find_changes(theirs, ours)):
            advice = "Take its recipe, or --set these fields."
            if any(theirs[field] != ours[field] for field in OF_THE_VOCABULARY):
                advice = "A recipe sets no token ids: fine-tune such a model with Seq2SeqTrainer."
            raise ValueError(f"{name} has another architecture than the recipe: {'; '.join(changes)}. {advice}")
        if tokenizer.get_vocab() != self.tokenizer.get_vocab() or trained.config.vocab_size != model.config.vocab_size:
            raise ValueError(
                f"{name} has another vocabulary than {self.data} ({trained.config.vocab_size} and "
                f"{model.config.vocab_size} entries): prepare the data with --keep_vocabulary {name}."
            )
        model.load_state_dict(trained.state_dict())
        self.init_fingerprint = fingerprint_model(name)

    def _describe(self) -> dict:
        """The contents of recipe.json, without versions."""
        return {
            "recipe": self.recipe.to_dict() | {"vocab_size": len(self.tokenizer)},
            "seed": self.seed,
            "data": self.preparation["fingerprint"],
            "init_from": self.init_from,
            "init_fingerprint": self.init_fingerprint,
            "mixed_precision": self.mixed_precision,
            "num_processes": self.accelerator.num_processes,
            "num_parameters": self.accelerator.unwrap_model(self.model).num_parameters(),
        }

    def _read_updates(self) -> Iterator[Update]:
        """The updates of this process that are still to come; on a GPU a worker prepares them."""
        stream = UpdateStream(
            self.train_pairs,
            tokens_per_batch=self.recipe.tokens_per_batch,
            seed=self.seed,
            short_first=self.recipe.short_first,
            bucketed=bool(self.recipe.bucketed),
            epoch=self.progress.epoch,
            updates_of_epoch=self.progress.updates_of_epoch,
            num_processes=self.accelerator.num_processes,
            process_index=self.accelerator.process_index,
            accumulation_steps=self.accumulation_steps,
        )
        device = self.accelerator.device.type
        num_workers = LOADER_WORKERS.get(device, DEFAULT_LOADER_WORKERS)
        loader = DataLoader(
            stream,
            batch_size=None,
            pin_memory=device == "cuda",
            generator=torch.Generator(),  # seeds workers, and must not change the numbers that dropout draws
            num_workers=num_workers,
            prefetch_factor=16 if num_workers else None,
            worker_init_fn=outlive_stop_request,
        )
        return iter(loader)
