"""The training loop of section 5, through Accelerate; tried on one process so far.

A run folder is all there is to a run: start the same command again and it goes on where it stopped.

    run/
        recipe.json         the recipe as resolved, seed, versions
        log.jsonl           a line an interval of training, a line an evaluation
        checkpoints/        see `checkpoints`
        model/              the mean of the last checkpoints: the result
"""

import json
import math
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import accelerate
import tokenizers
import torch
import transformers
from accelerate import Accelerator
from safetensors.torch import load_file
from transformers import PreTrainedTokenizerFast

from ..configuration_vaswani import VaswaniConfig
from ..data.batching import IGNORE_INDEX, TokenizedPairs, plan_updates, split_update
from ..data.preparation import PREPARATION_FILE
from ..modeling_vaswani import VaswaniForConditionalGeneration
from ..pipeline_vaswani import custom_pipelines
from ..recipes import Recipe
from .checkpoints import (
    STATE_FOLDER,
    WEIGHTS,
    average_checkpoints,
    complete_checkpoints,
    drop_old_checkpoints,
    resumable_checkpoints,
    write_checkpoint,
)
from .schedule import inverse_sqrt_schedule

try:
    from torch.utils.tensorboard import SummaryWriter
except ImportError:  # TensorBoard is not installed
    SummaryWriter = None

LOG_FILE = "log.jsonl"
RECIPE_FILE = "recipe.json"


@dataclass
class Progress:
    """Where a run stands; saved with every checkpoint."""

    update: int = 0
    epoch: int = 0
    updates_of_epoch: int = 0  # done of the present epoch
    seconds: float = 0.0  # of training, over all sittings
    best_dev_loss: float = math.inf
    evaluations_without_gain: int = 0
    log_bytes: int = 0  # of the log that belong to what is saved

    def state_dict(self) -> dict:
        return dict(self.__dict__)

    def load_state_dict(self, state: dict) -> None:
        self.__dict__.update(state)


@dataclass
class Tally:
    """Sums since the last line of the log."""

    loss: float = 0.0
    nll: float = 0.0
    target_tokens: int = 0
    tokens: int = 0
    padded_tokens: int = 0
    updates: int = 0
    started: float = field(default_factory=time.perf_counter)


class Trainer:
    """Trains one recipe on prepared data.

    Args:
        recipe: what to do.
        data: folder written by `vaswani prepare`.
        run: folder to write, or to go on with.
        seed: of initialisation, dropout and the order of the data.
        accumulation_steps: micro-batches an update is cut into on each process; changes memory, not results.
        mixed_precision: "no", "bf16" or "fp16".
        log_interval: updates between two lines of the log.
        score_dev: (model, tokenizer, pairs of text) -> BLEU of the development set, logged at each evaluation.
    """

    def __init__(
        self,
        recipe: Recipe,
        data: Path,
        run: Path,
        *,
        seed: int = 0,
        accumulation_steps: int = 1,
        mixed_precision: str = "no",
        log_interval: int = 50,
        score_dev: Callable[..., float] | None = None,
    ):
        self.recipe, self.data, self.run_folder, self.seed = recipe, data, run, seed
        self.accumulation_steps = accumulation_steps
        self.log_interval = log_interval
        self.score_dev = score_dev
        self.checkpoint_folder = run / "checkpoints"
        self.model_folder = run / "model"
        self.accelerator = Accelerator(mixed_precision=mixed_precision, step_scheduler_with_optimizer=False)
        accelerate.utils.set_seed(seed)
        if not (data / PREPARATION_FILE).exists():  # it is written last
            raise FileNotFoundError(f"{data} holds no prepared data; run `vaswani prepare` with --output {data} first.")
        self.tokenizer = PreTrainedTokenizerFast.from_pretrained(data)
        self.train_pairs, self.dev_pairs = (
            TokenizedPairs.load(data / f"{name}.arrow", pad_token_id=self.tokenizer.pad_token_id)
            for name in ("train", "dev")
        )
        self.progress = Progress()
        self.tensorboard = None
        self._build()

    def _build(self) -> None:
        recipe, tokenizer = self.recipe, self.tokenizer
        config = VaswaniConfig(
            **{"vocab_size": len(tokenizer)} | recipe.model,
            bos_token_id=tokenizer.bos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
            decoder_start_token_id=tokenizer.bos_token_id,
        )
        languages = json.loads((self.data / PREPARATION_FILE).read_text(encoding="utf-8"))
        task = f"translation_{languages['source_language']}_to_{languages['target_language']}"
        config.custom_pipelines = custom_pipelines(task)
        model = VaswaniForConditionalGeneration(config)
        model.generation_config.num_beams = recipe.num_beams
        model.generation_config.length_penalty = recipe.length_penalty
        optimizer = torch.optim.Adam(
            model.parameters(), lr=recipe.lr_scale, betas=recipe.adam_betas, eps=recipe.adam_eps, fused=True
        )
        self.schedule = inverse_sqrt_schedule(optimizer, d_model=config.d_model, warmup_steps=recipe.warmup_updates)
        self.model, self.optimizer = self.accelerator.prepare(model, optimizer)
        self.accelerator.register_for_checkpointing(self.schedule, self.progress)
        # The weights are in the checkpoint already, as a model like any other.
        self.accelerator.register_save_state_pre_hook(lambda models, weights, folder: weights.clear())
        self.accelerator.register_load_state_pre_hook(self._load_weights)
        if SummaryWriter is not None and self.accelerator.is_main_process:
            self.tensorboard = SummaryWriter(str(self.run_folder / "tensorboard"))

    def _load_weights(self, models: list[torch.nn.Module], folder: str) -> None:
        """Put the weights beside `folder` into the model; for Accelerate, in place of its own way."""
        state = load_file(Path(folder).parent / WEIGHTS)
        mismatch = self.accelerator.unwrap_model(models[0]).load_state_dict(state, strict=False)
        assert not mismatch.unexpected_keys  # missing are the names of tied weights, stored once
        models.clear()

    def train(self) -> Path:
        """Run to the end of the recipe, from the last checkpoint if there is one.

        Returns:
            the folder of the final model, the mean of the last checkpoints.

        Raises:
            ValueError: if the run folder belongs to another recipe or seed.
            FloatingPointError: if the loss is no longer finite.
        """
        self._open_run()
        done = self._is_finished()
        self._tally, self._last_save = Tally(), time.perf_counter()
        self._sitting_started = time.perf_counter() - self.progress.seconds
        while not done:
            done = self._train_epoch()
        self.accelerator.wait_for_everyone()
        if self.accelerator.is_main_process:
            last = complete_checkpoints(self.checkpoint_folder)[-self.recipe.num_averaged_checkpoints :]
            average_checkpoints(last, self.model_folder)
            self._print(f"averaged {len(last)} checkpoints into {self.model_folder}")
        self.accelerator.wait_for_everyone()
        return self.model_folder

    def _open_run(self) -> None:
        """Write down what this run is, or check that the folder is this run's, and go to where it stopped."""
        description = {
            "recipe": json.loads(json.dumps(self.recipe.to_dict())),
            "seed": self.seed,
            "versions": {
                "python": platform.python_version(),
                "torch": torch.__version__,
                "transformers": transformers.__version__,
                "accelerate": accelerate.__version__,
                "tokenizers": tokenizers.__version__,
            },
            "num_parameters": self.accelerator.unwrap_model(self.model).num_parameters(),
        }
        path = self.run_folder / RECIPE_FILE
        checkpoints = resumable_checkpoints(self.checkpoint_folder)
        if path.exists() and checkpoints:
            earlier = json.loads(path.read_text(encoding="utf-8"))
            for name in ("recipe", "seed"):
                if earlier[name] != description[name]:
                    difference = _difference(earlier[name], description[name])
                    raise ValueError(
                        f"{self.run_folder} holds a run with another {name}: {difference}. "
                        f"Name another output folder, or give the settings it was started with."
                    )
        elif self.accelerator.is_main_process:
            self.run_folder.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(description, indent=2), encoding="utf-8")
        if checkpoints:
            self.accelerator.load_state(str(checkpoints[-1] / STATE_FOLDER))
            self._print(f"resuming after update {self.progress.update} from {checkpoints[-1]}")
        if self.accelerator.is_main_process:
            with (self.run_folder / LOG_FILE).open("ab") as log:
                log.truncate(self.progress.log_bytes)  # lines that no checkpoint remembers are written again

    def _is_finished(self) -> bool:
        patience = self.recipe.patience
        return self.progress.update >= self.recipe.num_updates or (
            patience is not None and self.progress.evaluations_without_gain >= patience
        )

    def _train_epoch(self) -> bool:
        """Go through what is left of the present epoch; True when the run is finished."""
        progress, parts = self.progress, self.accelerator.num_processes * self.accumulation_steps
        plan = plan_updates(
            self.train_pairs.sources.lengths,
            self.train_pairs.targets.lengths,
            tokens_per_batch=self.recipe.tokens_per_batch,
            seed=self.seed,
            epoch=progress.epoch,
        )
        first = self.accelerator.process_index * self.accumulation_steps
        for rows in plan[progress.updates_of_epoch :]:
            shares = split_update(rows, parts)[first : first + self.accumulation_steps]
            self._update([self.train_pairs[share] for share in shares if len(share)])
            progress.update += 1
            progress.updates_of_epoch += 1
            end_of_epoch = progress.updates_of_epoch == len(plan)
            if end_of_epoch:
                progress.epoch, progress.updates_of_epoch = progress.epoch + 1, 0
            last = progress.update >= self.recipe.num_updates
            if progress.update % self.log_interval == 0 or last:
                self._log_training()
            if last or self._is_checkpoint_due(end_of_epoch):
                self._evaluate()
                self._save()
            if self._is_finished():
                return True
        return False

    def _update(self, micro_batches: list[dict[str, torch.Tensor]]) -> None:
        """One optimizer step. The loss is the mean over the target tokens of all processes and micro-batches."""
        self.model.train()
        device, tally = self.accelerator.device, self._tally
        counts = [int((batch["labels"] != IGNORE_INDEX).sum()) for batch in micro_batches]
        total = self.accelerator.reduce(torch.tensor(sum(counts), device=device), reduction="sum")
        for i, batch in enumerate(micro_batches):
            batch = {name: tensor.to(device) for name, tensor in batch.items()}
            with self.accelerator.accumulate(self.model) if i == len(micro_batches) - 1 else self._no_sync():
                output = self.model(**batch, num_items_in_batch=total)
                # Data parallelism takes the mean of the gradients, the formula wants their sum.
                self.accelerator.backward(output.loss * self.accelerator.num_processes)
            tally.loss += float(output.loss.detach()) * int(total)
            tally.nll += float(output.nll_loss) * int(total)
            tally.tokens += int(batch["attention_mask"].sum()) + counts[i]
            tally.padded_tokens += batch["input_ids"].numel() + batch["labels"].numel()
        if not math.isfinite(tally.loss):
            raise FloatingPointError(
                f"the loss of update {self.progress.update + 1} is not finite. Go on from the last checkpoint with "
                f"a smaller lr_scale or without mixed precision."
            )
        tally.target_tokens += int(total)
        tally.updates += 1
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad()

    def _no_sync(self):
        return self.accelerator.no_sync(self.model)

    def _log_training(self) -> None:
        tally, progress = self._tally, self.progress
        seconds = time.perf_counter() - tally.started
        sums = torch.tensor([tally.loss, tally.nll, tally.tokens, tally.padded_tokens], dtype=torch.float64)
        loss, nll, tokens, padded = self.accelerator.reduce(sums.to(self.accelerator.device), "sum").tolist()
        progress.seconds = time.perf_counter() - self._sitting_started
        line = {
            "update": progress.update,
            "epoch": progress.epoch,
            "loss": loss / tally.target_tokens,
            "perplexity": math.exp(nll / tally.target_tokens),
            "lr": self.schedule.get_last_lr()[0],
            "target_tokens_per_second": tally.target_tokens / seconds,
            "fill": tokens / padded,
            "seconds": progress.seconds,
        }
        self._write_log(line)
        remaining = (self.recipe.num_updates - progress.update) * seconds / tally.updates
        self._print(
            f"update {line['update']}/{self.recipe.num_updates}  epoch {line['epoch']}  loss {line['loss']:.3f}  "
            f"ppl {line['perplexity']:.2f}  lr {line['lr']:.2e}  {line['target_tokens_per_second']:.0f} tok/s  "
            f"fill {line['fill']:.1%}  ETA {_hours(remaining)}",
            live=True,
        )
        self._tally = Tally()

    def _is_checkpoint_due(self, end_of_epoch: bool) -> bool:
        amount, unit = self.recipe.checkpoint_interval
        if unit == "updates":
            return self.progress.update % amount == 0
        if unit == "epochs":
            return end_of_epoch and self.progress.epoch % amount == 0
        # Clocks differ between processes: the first one's decides.
        due = torch.tensor(int(time.perf_counter() - self._last_save >= 60 * amount), device=self.accelerator.device)
        return bool(accelerate.utils.broadcast(due))

    @torch.no_grad()
    def _evaluate(self) -> None:
        """Perplexity of the development set, without label smoothing, and its BLEU if asked for."""
        started, progress, pairs = time.perf_counter(), self.progress, self.dev_pairs
        self.model.eval()
        batches = plan_updates(pairs.sources.lengths, pairs.targets.lengths, tokens_per_batch=8_192, seed=0, epoch=0)
        nll = torch.zeros((), dtype=torch.float64, device=self.accelerator.device)
        for rows in batches[self.accelerator.process_index :: self.accelerator.num_processes]:
            batch = {name: tensor.to(self.accelerator.device) for name, tensor in pairs[rows].items()}
            nll += self.model(**batch, num_items_in_batch=1, skip_logits=True).loss.double()
        dev_loss = float(self.accelerator.reduce(nll, "sum")) / int(pairs.targets.lengths.sum())
        line = {"update": progress.update, "epoch": progress.epoch, "dev_perplexity": math.exp(dev_loss)}
        if self.score_dev is not None:
            texts = json.loads((self.data / "dev.json").read_text(encoding="utf-8"))
            line["dev_bleu"] = self.score_dev(self.accelerator.unwrap_model(self.model), self.tokenizer, texts)
        progress.evaluations_without_gain += 1
        if dev_loss < progress.best_dev_loss:
            progress.best_dev_loss, progress.evaluations_without_gain = dev_loss, 0
        self._write_log(line)
        self._print("  ".join(f"{name} {value:.4g}" for name, value in line.items()))
        self._tally.started += time.perf_counter() - started  # not training time

    def _save(self) -> None:
        """One checkpoint, written by the first process: the random states of others are not in it yet."""
        started, accelerator, step = time.perf_counter(), self.accelerator, self.progress.update
        model = accelerator.unwrap_model(self.model)
        if accelerator.is_main_process:
            self.progress.log_bytes = (self.run_folder / LOG_FILE).stat().st_size

            def write(folder: Path) -> None:
                model.save_pretrained(folder)
                self.tokenizer.save_pretrained(folder)
                accelerator.save_state(str(folder / STATE_FOLDER))

            write_checkpoint(self.checkpoint_folder, step, write)
            drop_old_checkpoints(self.checkpoint_folder, keep=self.recipe.num_averaged_checkpoints)
        accelerator.wait_for_everyone()
        self._last_save = time.perf_counter()
        self._tally.started += time.perf_counter() - started

    def _write_log(self, line: dict) -> None:
        if self.accelerator.is_main_process:
            with (self.run_folder / LOG_FILE).open("a", encoding="utf-8") as log:
                log.write(json.dumps(line) + "\n")
        if self.tensorboard is not None:
            for name in line.keys() - {"update"}:
                self.tensorboard.add_scalar(name, line[name], line["update"])

    def _print(self, text: str, *, live: bool = False) -> None:
        """A line on standard error; on a terminal a `live` one is written over by the next."""
        if not self.accelerator.is_main_process:
            return
        if sys.stderr.isatty():
            print(f"\r{text}\x1b[K", end="" if live else "\n", file=sys.stderr, flush=True)
        else:
            print(text, file=sys.stderr, flush=True)


def _difference(earlier, now) -> str:
    if not isinstance(earlier, dict):
        return f"{earlier} there, {now} here"
    names = [name for name in now if earlier.get(name) != now[name]]
    return "; ".join(f"{name} is {earlier.get(name)} there, {now[name]} here" for name in names)


def _hours(seconds: float) -> str:
    return f"{int(seconds) // 3600}:{int(seconds) % 3600 // 60:02d}:{int(seconds) % 60:02d}"
