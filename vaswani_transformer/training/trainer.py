"""The training loop of section 5, through Accelerate, on any number of processes.

A run folder is all there is to a run: start the same command again and it goes on where it stopped.

    run/
        recipe.json         the recipe as resolved, seed, fingerprint of the data, precision, processes, versions
        log.jsonl           a line an interval of training, a line an evaluation
        tensorboard/        the same numbers, where the package tensorboard is installed
        checkpoints/        see `checkpoints`
        model/              the mean of the last checkpoints: the result
        lock                which process trains here
"""

import contextlib
import json
import math
import pickle
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import accelerate
import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from accelerate.utils import RNG_STATE_NAME, DistributedType, broadcast_object_list
from safetensors.torch import load_file
from torch.utils.data import DataLoader
from transformers import PreTrainedTokenizerFast

from ..data.batching import TokenizedPairs, Update, UpdateStream, plan_updates, split_update
from ..data.preparation import PREPARATION_FILE, read_preparation
from ..memory import keep_few_kernels
from ..model.configuration_vaswani import VaswaniConfig
from ..model.modeling_vaswani import VaswaniForConditionalGeneration
from ..model.pipeline_vaswani import custom_pipelines
from ..resuming.files import find_damage
from ..resuming.locks import check_processes
from .checkpoints import (
    PARTIAL_PREFIX,
    STATE_FOLDER,
    WEIGHTS,
    average_checkpoints,
    begin_checkpoint,
    checkpoint_name,
    complete_checkpoints,
    drop_old_checkpoints,
    finish_checkpoint,
    resumable_checkpoints,
)
from .diagnosis import explain_out_of_memory, find_non_finite, is_write_error
from .interruption import Interrupted, StopRequest, outlive_stop_request
from .log import Log
from .recipes import Recipe
from .run_folder import open_run
from .schedule import inverse_sqrt_schedule
from .tally import Tally, perplexity, sum_dtype

NON_FINITE_FILE = "non_finite.json"
SKIPPED_IN_A_ROW = 10  # updates without a finite gradient that end a run
# Updates between two looks at what all processes must agree on. A GPU is ten updates behind the host at best, and
# each look makes the host wait for it.
UPDATES_PER_CHECK = {"cpu": 1}
DEFAULT_UPDATES_PER_CHECK = 10
TOKENS_PER_MICRO_BATCH = {"cpu": 4_096}  # padded tokens of a side
# Processes that make batches ready. On a CPU one would take a core from the training; one is enough for any GPU. Where
# there is MPS, processes are not forked, and a worker would get a copy of the corpus.
LOADER_WORKERS = {"cpu": 0, "mps": 0}
DEFAULT_LOADER_WORKERS = 1


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
    num_processes: int = 1

    def state_dict(self) -> dict:
        return dict(self.__dict__)

    def load_state_dict(self, state: dict) -> None:
        for field in fields(self):
            setattr(self, field.name, state[field.name])


class Trainer:
    """Trains one recipe on prepared data.

    The same global batch gives the same update however it is split: over processes, or over time by accumulation. A
    run that was stopped ends with the weights of one that never was.

    Args:
        recipe: what to do.
        data: folder written by `vaswani prepare`.
        run: folder to write, or to go on with; all processes must see it.
        seed: of initialisation, dropout and the order of the data.
        accumulation_steps: micro-batches an update is cut into on each process; changes speed and memory, not
            results. When not given: one on a GPU, on a CPU as many as keep them at about 4,096 tokens.
        mixed_precision: "no", "bf16" or "fp16". When not given: the launcher's choice, "no" without a launcher.
        log_interval: updates between two lines of the log.
        score_dev: (model, tokenizer, pairs of text) -> BLEU of the development set, logged at each evaluation.
        change_processes: go on with a run that another number of processes began. No pair is skipped or repeated,
            but dropout draws other numbers than it would have.

    Raises:
        FileNotFoundError: if `data` is no prepared data.
        ValueError: if a file of the data is missing or damaged, if the processes do not know each other, or if
            `score_dev` is asked of a model in parts.
    """

    def __init__(
        self,
        recipe: Recipe,
        data: Path,
        run: Path,
        *,
        seed: int = 0,
        accumulation_steps: int | None = None,
        mixed_precision: str | None = None,
        log_interval: int = 50,
        score_dev: Callable[..., float] | None = None,
        change_processes: bool = False,
    ):
        self.recipe, self.data, self.run_folder, self.seed = recipe, data, run, seed
        self.log_interval = log_interval
        self.score_dev = score_dev
        self.change_processes = change_processes
        self.checkpoint_folder = run / "checkpoints"
        self.model_folder = run / "model"
        self.accelerator = Accelerator(
            mixed_precision=mixed_precision,
            step_scheduler_with_optimizer=False,
            # Without a second copy of the gradients.
            kwargs_handlers=[DistributedDataParallelKwargs(gradient_as_bucket_view=True)],
        )
        if self.accelerator.device.type == "cpu" and self.accelerator.mixed_precision != "no":
            keep_few_kernels()
        check_processes(self.accelerator.num_processes)
        if score_dev is not None and self._is_sharded:
            raise ValueError(
                "the development set cannot be translated during training where each process holds a part of the "
                "model only (FSDP): leave dev_bleu away, and run `vaswani evaluate` on the checkpoints."
            )
        if accumulation_steps is None:
            accumulation_steps = self._choose_accumulation_steps()
        if accumulation_steps < 1:
            raise ValueError(f"accumulation_steps must be at least 1, one micro-batch; got {accumulation_steps}.")
        self.accumulation_steps = accumulation_steps
        self.preparation = read_preparation(data)
        self._refuse_damaged_data()
        self.tokenizer = PreTrainedTokenizerFast.from_pretrained(data)
        self.train_pairs, self.dev_pairs = self._load_pairs("train"), self._load_pairs("dev")
        self.progress = Progress(num_processes=self.accelerator.num_processes)
        self.tally = Tally(self.accelerator)
        self.log = Log(run, is_main_process=self.accelerator.is_main_process)
        self._build()

    def _refuse_damaged_data(self) -> None:
        """The main process compares the digests of the prepared files, and all raise what it finds."""
        damage = ""
        if self.accelerator.is_main_process:
            damage = find_damage(self.data, self.preparation.get("files", {}))  # none of an earlier version
        (damage,) = broadcast_object_list([damage])
        if damage:
            raise ValueError(f"{damage}. Copy the folder again, or remove it and run `vaswani prepare`.")

    def _load_pairs(self, name: str) -> TokenizedPairs:
        """One of the prepared sets, whole."""
        pairs = TokenizedPairs.load(self.data / name, pad_token_id=self.tokenizer.pad_token_id)
        expected = self.preparation[name]["pairs"]
        if len(pairs) != expected:
            raise ValueError(
                f"{self.data / name} holds {len(pairs)} pairs, but {PREPARATION_FILE} counts {expected}: a part is "
                f"missing or foreign. Copy the folder again, or remove it and run `vaswani prepare`."
            )
        return pairs

    def _choose_accumulation_steps(self) -> int:
        """A GPU wants large products; on a CPU smaller micro-batches stay in the cache, and they pad less."""
        limit = TOKENS_PER_MICRO_BATCH.get(self.accelerator.device.type, math.inf)
        return max(1, round(self.recipe.tokens_per_batch / self.accelerator.num_processes / limit))

    def _build(self) -> None:
        recipe, tokenizer = self.recipe, self.tokenizer
        config = VaswaniConfig(
            **{"vocab_size": len(tokenizer)} | recipe.model,
            bos_token_id=tokenizer.bos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
            decoder_start_token_id=tokenizer.bos_token_id,
        )
        task = f"translation_{self.preparation['source_language']}_to_{self.preparation['target_language']}"
        config.custom_pipelines = custom_pipelines(task)
        accelerate.utils.set_seed(self.seed)  # the same weights everywhere ...
        model = VaswaniForConditionalGeneration(config)
        accelerate.utils.set_seed(self.seed, device_specific=True)  # ... but other dropout
        model.generation_config.num_beams = recipe.num_beams
        model.generation_config.length_penalty = recipe.length_penalty
        if recipe.compile:
            # Not the loss, which goes slice by slice. Lengths are symbols, so one compilation serves all batches.
            model.model.compile(dynamic=True)
        if self._is_sharded:
            # One module, and not three that share a matrix: FSDP2 keeps a matrix in one group of modules.
            model.set_input_embeddings(model.get_input_embeddings())
        # Without weight decay this is the paper's Adam to the bit.
        optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=recipe.lr_scale,
            betas=recipe.adam_betas,
            eps=recipe.adam_eps,
            weight_decay=recipe.weight_decay,
            fused=True,
        )
        self.schedule = inverse_sqrt_schedule(optimizer, d_model=config.d_model, warmup_steps=recipe.warmup_updates)
        self.model, self.optimizer = self.accelerator.prepare(model, optimizer)
        self.accelerator.register_for_checkpointing(self.schedule, self.progress, self.tally)
        # The weights are in the checkpoint already, as a model like any other.
        self.accelerator.register_save_state_pre_hook(lambda models, weights, folder: weights.clear())
        self.accelerator.register_load_state_pre_hook(self._load_weights)

    @property
    def _is_sharded(self) -> bool:
        """Whether each process holds a part of the weights only (FSDP): then Accelerate saves and loads them."""
        return self.accelerator.distributed_type == DistributedType.FSDP

    def _load_weights(self, models: list[torch.nn.Module], folder: str) -> None:
        """Put the weights beside `folder` into the model; for Accelerate, in place of its own way."""
        if self._is_sharded:
            return
        state = load_file(Path(folder).parent / WEIGHTS)
        mismatch = self.accelerator.unwrap_model(models[0]).load_state_dict(state, strict=False)
        assert not mismatch.unexpected_keys  # missing are the names of tied weights, stored once
        models.clear()

    def train(self) -> Path:
        """Run to the end of the recipe, from the last checkpoint if there is one.

        Returns:
            the folder of the final model, the mean of the last checkpoints.

        Raises:
            ValueError: if the run folder belongs to a run of another recipe, seed, data, precision or number of
                processes, if another process is training in it, if not all processes see it and the same data, or
                if none of its checkpoints is intact.
            FloatingPointError: if ten updates in a row had no finite gradient.
            MemoryError: if a micro-batch does not fit; the message names its shape.
            OSError: if a checkpoint cannot be written; the one before is intact.
            Interrupted: after SIGTERM, when the update under way is done and saved.
        """
        description, warn = self._describe(), self.log.print
        with open_run(self.accelerator, self.run_folder, self.data, description, warn=warn) as checkpoint, self.log:
            self._go_to_where_it_stopped(checkpoint)
            with StopRequest() as self._stop_request:
                if not self._is_finished():
                    self._train()
            self.accelerator.wait_for_everyone()
            if self.accelerator.is_main_process:
                last = complete_checkpoints(self.checkpoint_folder)[-self.recipe.num_averaged_checkpoints :]
                average_checkpoints(last, self.model_folder)
                self.log.print(f"averaged {len(last)} checkpoints into {self.model_folder}")
            self.accelerator.wait_for_everyone()
        return self.model_folder

    def _describe(self) -> dict:
        """What recipe.json says of this run beside versions."""
        return {
            "recipe": self.recipe.to_dict() | {"vocab_size": len(self.tokenizer)},
            "seed": self.seed,
            "data": self.preparation["fingerprint"],
            "mixed_precision": self.accelerator.mixed_precision,
            "num_processes": self.accelerator.num_processes,
            "num_parameters": self.accelerator.unwrap_model(self.model).num_parameters(),
        }

    def _go_to_where_it_stopped(self, checkpoint: Path | None) -> None:
        """From `checkpoint` on, or from the start; the log has then no line of what is still to come."""
        for partial in sorted(self.checkpoint_folder.glob(f"{PARTIAL_PREFIX}*")):
            self.log.print(f"{partial} is not whole and is left aside")
        if checkpoint:
            self._load(checkpoint)
            self._check_num_processes(checkpoint)
            self.log.print(f"resuming after update {self.progress.update} from {checkpoint}")
        accelerator, progress = self.accelerator, self.progress
        accelerator.wait_for_everyone()  # before the first process changes what the others look at
        self.log.open(update=progress.update, num_bytes=progress.log_bytes)
        self._sitting_started = time.perf_counter() - progress.seconds
        devices = f"{accelerator.num_processes} x {accelerator.device.type}"
        self.log.print(f"training on {devices}, mixed precision {accelerator.mixed_precision}")

    def _load(self, checkpoint: Path) -> None:
        """Go to where `checkpoint` was written, which is intact; refuse one that holds programs, as a pickle may."""
        folder = checkpoint / STATE_FOLDER
        try:
            for path in folder.glob("custom_checkpoint_*.pkl"):
                # Accelerate reads these as pickles that may run anything: they must be such as hold values only.
                torch.load(path, map_location="cpu", weights_only=True)
            self.accelerator.load_state(str(folder))
            if self.progress.num_processes == self.accelerator.num_processes:
                # Accelerate goes on without the random states if it cannot read them.
                accelerate.utils.load(folder / f"{RNG_STATE_NAME}_{self.accelerator.process_index}.pkl")
        except pickle.UnpicklingError as error:
            reason = str(error).partition("\n")[0]
            raise ValueError(
                f"{folder} holds more than values, so it was not written by this package ({reason}). Remove "
                f"{checkpoint} to go on from the one before."
            ) from error

    def _check_num_processes(self, checkpoint: Path) -> None:
        """Refuse to go on from `checkpoint` with another number of processes, or take account of it."""
        progress, now = self.progress, self.accelerator.num_processes
        if progress.num_processes == now:
            return
        if not self.change_processes:
            raise ValueError(
                f"{checkpoint} was written by {progress.num_processes} processes, this is a run of {now}. Start "
                f"{progress.num_processes}, or give --change_processes: no pair is skipped or repeated, but "
                f"dropout will draw other numbers."
            )
        accelerate.utils.set_seed(self.seed + progress.update, device_specific=True)
        progress.num_processes = now

    def _is_finished(self) -> bool:
        patience = self.recipe.patience
        return self.progress.update >= self.recipe.num_updates or (
            patience is not None and self.progress.evaluations_without_gain >= patience
        )

    def _read_updates(self) -> Iterator[Update]:
        """The updates of this process from where the run stands, made ready beside the training on a GPU."""
        stream = UpdateStream(
            self.train_pairs,
            tokens_per_batch=self.recipe.tokens_per_batch,
            seed=self.seed,
            short_first=self.recipe.short_first,
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
            # Its own: the loader draws a number to seed workers, and dropout must not notice.
            generator=torch.Generator(),
            num_workers=num_workers,
            prefetch_factor=16 if num_workers else None,
            worker_init_fn=outlive_stop_request,
        )
        return iter(loader)

    def _train(self) -> None:
        """The loop: one update after the other, until the recipe or its patience ends."""
        progress = self.progress
        interval = UPDATES_PER_CHECK.get(self.accelerator.device.type, DEFAULT_UPDATES_PER_CHECK)
        for update in self._read_updates():
            self._run_update(update)
            progress.update += 1
            progress.updates_of_epoch += 1
            if update.is_last_of_epoch:
                progress.epoch, progress.updates_of_epoch = progress.epoch + 1, 0
            last = progress.update >= self.recipe.num_updates
            must_stop, is_due = False, last or self._is_checkpoint_due(update.is_last_of_epoch)
            if progress.update % interval == 0 or is_due:
                must_stop = self._agree_to_stop()
                self._check_finite(update)
            if progress.update % self.log_interval == 0 or last:
                self._log_training()
            if is_due:
                self._evaluate()
                self._save()
            elif must_stop:
                self._save(is_scheduled=False)
            if self._is_finished():
                return
            if must_stop:
                raise Interrupted(
                    f"stopped by SIGTERM after update {progress.update} and saved; the same command goes on from there."
                )

    def _run_update(self, update: Update) -> None:
        """One optimizer step. The loss is the mean over the target tokens of all processes and micro-batches."""
        self.model.train()
        device = self.accelerator.device
        losses = torch.zeros(2, dtype=sum_dtype(device), device=device)
        for i, batch in enumerate(update.micro_batches):
            is_last = i == len(update.micro_batches) - 1
            batch = {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}
            # Gradients travel between the processes once, with the last micro-batch.
            sync = contextlib.nullcontext() if is_last else self.accelerator.no_sync(self.model)
            with sync, explain_out_of_memory(batch):
                output = self.model(**batch, num_items_in_batch=update.target_tokens)
                # Data parallelism takes the mean of the gradients, the formula wants their sum.
                self.accelerator.backward(output.loss * self.accelerator.num_processes)
            losses += torch.stack([output.loss.detach(), output.nll_loss]) * update.target_tokens
        gradients = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        is_finite = (norm.full_tensor() if self._is_sharded else norm).isfinite()
        if self.accelerator.scaler is None:
            # The fused kernel then leaves weights and averages as they are, and the host need not know.
            self.optimizer.optimizer.found_inf = (~is_finite).float()
        self.optimizer.step()
        self._lr = self.schedule.get_last_lr()[0]
        self.schedule.step()
        self.optimizer.zero_grad()
        self.tally.add(losses, is_finite, update)

    @property
    def _seconds(self) -> float:
        """Of training up to now, over all sittings."""
        return time.perf_counter() - self._sitting_started

    def _agree_to_stop(self) -> bool:
        """Whether one of the processes was asked to stop; all of them must then save."""
        own = torch.tensor(self._stop_request.received, device=self.accelerator.device).int()
        return bool(self.accelerator.reduce(own, "sum"))

    def _check_finite(self, update: Update) -> None:
        """End the run when nothing has been learnt for a while; `update` is the last one."""
        now, longest = self.tally.count_skipped_in_a_row()
        if longest < SKIPPED_IN_A_ROW:
            return
        place = "up to" if now == longest else "before"
        device, model = self.accelerator.device, self.accelerator.unwrap_model(self.model)
        report = {"update": self.progress.update, "process": self.accelerator.process_index, "micro_batches": []}
        for rows, batch in zip(update.rows, update.micro_batches, strict=True):
            first = find_non_finite(model, {name: tensor.to(device) for name, tensor in batch.items()})
            sources, targets = (
                self.tokenizer.batch_decode([column[row] for row in rows], skip_special_tokens=True)
                for column in (self.train_pairs.sources, self.train_pairs.targets)
            )
            pairs = [[int(row), *texts] for row, *texts in zip(rows, sources, targets, strict=True)]
            report["micro_batches"].append({"first_non_finite": first, "pairs": pairs})
        path = self.run_folder / f"{self.accelerator.process_index}-{NON_FINITE_FILE}"
        path.write_text(json.dumps(report, ensure_ascii=False, indent=1), encoding="utf-8")
        raise FloatingPointError(
            f"{longest} updates in a row, {place} update {self.progress.update}, had a gradient that is not finite, "
            f"and were skipped. {path} names the first module with such an output and the pairs of the last batch. "
            f"The same command would come to the same end: name another output folder and begin anew, with mixed "
            f"precision bf16 or none, with another seed, or with a recipe of a smaller lr_scale or more warmup_updates."
        )

    def _log_training(self) -> None:
        progress, tally = self.progress, self.tally
        progress.seconds = self._seconds
        means = tally.compute_means()
        line = {
            "update": progress.update,
            "epoch": progress.epoch,
            "lr": self._lr,
            **means,
            "seconds": progress.seconds,
        }
        self.log.write(line)
        remaining = (self.recipe.num_updates - progress.update) * tally.seconds / tally.updates
        losses = "no finite update"
        if line["loss"] is not None:
            losses = f"loss {line['loss']:.3f}  ppl {line['perplexity']:.2f}"
        skipped = f"  skipped {line['skipped']}" if line["skipped"] else ""
        self.log.print(
            f"update {line['update']}/{self.recipe.num_updates}  epoch {line['epoch']}  {losses}  lr {line['lr']:.2e}  "
            f"{line['target_tokens_per_second']:.0f} tok/s  fill {line['fill']:.1%}{skipped}  ETA {_hours(remaining)}",
            live=True,
        )
        tally.start_line()

    def _is_checkpoint_due(self, end_of_epoch: bool) -> bool:
        amount, unit = self.recipe.checkpoint_interval
        if unit == "epochs":
            return end_of_epoch and self.progress.epoch % amount == 0
        return self.progress.update % amount == 0

    @torch.no_grad()
    def _evaluate(self) -> None:
        """Perplexity of the development set, without label smoothing, and its BLEU if asked for."""
        started, progress, accelerator = time.perf_counter(), self.progress, self.accelerator
        # Without the wrapper of data parallelism; what is sharded takes part in every forward of all processes.
        model = self.model if self._is_sharded else accelerator.unwrap_model(self.model)
        model.eval()
        dev_loss = self._compute_dev_loss(model)
        line = {"update": progress.update, "epoch": progress.epoch, "dev_perplexity": perplexity(dev_loss)}
        if self.score_dev is not None and accelerator.is_main_process:
            texts = json.loads((self.data / "dev.json").read_text(encoding="utf-8"))
            line["dev_bleu"] = self.score_dev(model, self.tokenizer, texts)
        progress.evaluations_without_gain += 1
        if dev_loss < progress.best_dev_loss:
            progress.best_dev_loss, progress.evaluations_without_gain = dev_loss, 0
        self.log.write(line)
        self.log.print("  ".join(f"{name} {value:.4g}" for name, value in line.items()))
        accelerator.wait_for_everyone()
        self.tally.leave_out(time.perf_counter() - started)

    def _compute_dev_loss(self, model: torch.nn.Module) -> float:
        """-log P of the development set in nats a token."""
        sources, targets = self.dev_pairs.sources.lengths, self.dev_pairs.targets.lengths
        accelerator, num_processes = self.accelerator, self.accelerator.num_processes
        tokens_per_batch = max(8_192, int(sources.max()), int(targets.max()))
        nll = torch.zeros((), dtype=sum_dtype(accelerator.device), device=accelerator.device)
        for rows in plan_updates(sources, targets, tokens_per_batch=tokens_per_batch, seed=0, epoch=0):
            part = split_update(rows, sources, targets, num_parts=num_processes)[accelerator.process_index]
            batch = self.dev_pairs[part if len(part) else rows[:1]]
            batch = {name: tensor.to(accelerator.device) for name, tensor in batch.items()}
            nll += model(**batch, num_items_in_batch=1, skip_logits=True).loss * bool(len(part))
        return float(accelerator.reduce(nll, "sum")) / int(targets.sum())

    def _save(self, *, is_scheduled: bool = True) -> None:
        """One checkpoint, by all processes together: each has random states of its own."""
        started, progress = time.perf_counter(), self.progress
        progress.seconds = self._seconds
        name = checkpoint_name(progress.update, is_scheduled=is_scheduled)
        try:
            self._write_checkpoint(name)
        except Exception as error:
            if not is_write_error(error):
                raise
            shutil.rmtree(self.checkpoint_folder / f"{PARTIAL_PREFIX}{name}", ignore_errors=True)
            before = resumable_checkpoints(self.checkpoint_folder)[-1:]
            intact = f"{before[0]} is intact" if before else "there is none before it"
            raise OSError(
                f"the checkpoint of update {progress.update} could not be written: {error}. {intact}. "
                f"Mend the cause, for example make room on the disk, and start the same command again."
            ) from error
        if self.accelerator.is_main_process:
            drop_old_checkpoints(self.checkpoint_folder, keep=self.recipe.num_averaged_checkpoints)
        self.accelerator.wait_for_everyone()
        self.tally.leave_out(time.perf_counter() - started)

    def _write_checkpoint(self, name: str) -> None:
        """An empty folder, filled by all processes, with the log on the disk up to here, then given its `name`."""
        accelerator = self.accelerator
        if accelerator.is_main_process:
            self.progress.log_bytes = self.log.sync()
            begin_checkpoint(self.checkpoint_folder, name)
        accelerator.wait_for_everyone()
        partial = self.checkpoint_folder / f"{PARTIAL_PREFIX}{name}"
        weights = accelerator.get_state_dict(self.model) if self._is_sharded else None
        if accelerator.is_main_process:
            self._gather_model(weights).save_pretrained(partial)
            self.tokenizer.save_pretrained(partial)
        accelerator.save_state(str(partial / STATE_FOLDER))
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            finish_checkpoint(partial)

    def _gather_model(self, weights: dict[str, torch.Tensor] | None) -> VaswaniForConditionalGeneration:
        """The model itself, or where it is sharded one of the class that was sharded, with the gathered `weights`."""
        model = self.accelerator.unwrap_model(self.model)
        if weights is None:
            return model
        with torch.device("meta"):  # draws no random numbers
            gathered = VaswaniForConditionalGeneration(model.config)
        gathered.load_state_dict(weights, assign=True)
        gathered.tie_weights()
        gathered.generation_config = model.generation_config
        return gathered


def _hours(seconds: float) -> str:
    return f"{int(seconds) // 3600}:{int(seconds) % 3600 // 60:02d}:{int(seconds) % 60:02d}"
