"""The training loop (sections 5 and 6.1 of the paper), through Accelerate, on any number of processes."""

import contextlib
import json
import time
from datetime import timedelta
from pathlib import Path

import torch

from ..data.batching import Update
from ..devices import advise_size
from .checkpoints import PARTIAL_PREFIX, average_checkpoints, checkpoint_name, complete_checkpoints
from .diagnosis import describe_batch, explain_out_of_memory
from .interruption import Interrupted, StopRequest
from .run_folder import open_run
from .setup import Setup, describe_recipe
from .sharding import is_sharded
from .tally import sum_dtype

NON_FINITE_FILE = "non_finite.json"
SKIPPED_IN_A_ROW = 10  # updates without a finite gradient that end a run
# Updates between two checks for which all processes, and host and device, wait for each other. Between two checks the
# host may run ahead of a GPU.
UPDATES_PER_CHECK = {"cpu": 1}
DEFAULT_UPDATES_PER_CHECK = 10
UPDATES_TO_MEASURE = 10  # before it is said how long a run will take


class Trainer(Setup):
    """Trains one recipe on prepared data; arguments are those of `Setup`.

    The same global batch gives the same update, however processes and accumulation split it. A run that was stopped
    ends with the weights of one that never was.
    """

    def _run_updates(self) -> None:
        """The loop: one update after the other, until the recipe or its patience ends."""
        interval = UPDATES_PER_CHECK.get(self.accelerator.device.type, DEFAULT_UPDATES_PER_CHECK)
        first, measured_from = self.progress.update + 1, None
        self.model.train()
        for update in self._read_updates():
            self._run_update(update)  # forward, backward, step, schedule
            self.progress.count(update)
            number = self.progress.update
            is_due = self._is_checkpoint_due() or number >= self.recipe.num_updates
            must_stop = False
            if number % interval == 0 or is_due:
                must_stop = self._agree_to_stop()
                self._check_finite(update)
                self.state.check()
                if measured_from is not None and number >= first + UPDATES_TO_MEASURE:
                    self._tell_duration((time.perf_counter() - measured_from) / (number - first))
                    measured_from = None
            if number == first:  # which takes longer than others
                measured_from = time.perf_counter()
            if number % self.log_interval == 0 or number >= self.recipe.num_updates:
                self._log_training()
            if is_due:
                self._evaluate()
            if is_due or must_stop:
                self._save(is_scheduled=is_due)
            if self._is_finished():
                return
            if must_stop:
                self.state.close()
                self.accelerator.wait_for_everyone()  # a launcher ends all processes when the first one ends
                raise Interrupted(f"stopped after update {number} and saved; the same command goes on from there.")

    def _run_update(self, update: Update) -> None:
        """One optimizer step, of a model in training mode.

        The loss is the mean over the target tokens of all processes and micro-batches.
        """
        device = self.accelerator.device
        losses = torch.zeros(2, dtype=sum_dtype(device), device=device)
        for i, batch in enumerate(update.micro_batches):
            is_last = i == len(update.micro_batches) - 1
            batch = {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}
            # Gradients travel between the processes once, with the last micro-batch.
            sync = contextlib.nullcontext() if is_last else self.accelerator.no_sync(self.model)
            with sync, explain_out_of_memory(batch):
                output = self.forward(**batch, num_items_in_batch=update.target_tokens)
                # Data parallelism takes the mean of the gradients, the formula wants their sum.
                self.accelerator.backward(output.loss * self.accelerator.num_processes)
            losses += torch.stack([output.loss.detach(), output.nll_loss]) * update.target_tokens
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        is_finite = (norm.full_tensor() if is_sharded(self.accelerator) else norm).isfinite()
        if self.accelerator.scaler is None:
            # The fused kernel then leaves weights and averages as they are, and the host need not know.
            self.optimizer.optimizer.found_inf = (~is_finite).float()
        self.optimizer.step()
        self._lr = self.schedule.get_last_lr()[0]
        self.schedule.step()
        self.optimizer.zero_grad()
        self.tally.add(losses, is_finite, update)

    def train(self) -> Path:
        """Run to the end of the recipe, from the last checkpoint if there is one.

        Returns:
            the folder of the final model, the mean of the last checkpoints.

        Raises:
            ValueError: as `open_run`, or if another number of processes wrote the checkpoint.
            FloatingPointError: if ten updates in a row had no finite gradient.
            MemoryError: if a micro-batch does not fit; the message names its shape.
            OSError: if a checkpoint cannot be written; the one before is intact.
            Interrupted: after SIGTERM or Ctrl+C, when the update under way is done and saved.
        """
        description, warn = self._describe(), self.log.print
        with open_run(self.accelerator, self.run_folder, self.data, description, warn=warn) as checkpoint, self.log:
            self._tell_settings(description["num_parameters"])
            self._go_to_where_it_stopped(checkpoint)
            with StopRequest() as self._stop_request, contextlib.closing(self.state):
                if not self._is_finished():
                    self._run_updates()
            self.accelerator.wait_for_everyone()
            if self.accelerator.is_main_process:
                last = complete_checkpoints(self.checkpoint_folder)[-self.recipe.num_averaged_checkpoints :]
                average_checkpoints(last, self.model_folder)
                self.log.print(f"averaged {len(last)} checkpoints into {self.model_folder}")
            self.accelerator.wait_for_everyone()
        return self.model_folder

    def _go_to_where_it_stopped(self, checkpoint: Path | None) -> None:
        """Restore `checkpoint`, if there is one, and remove what was logged after it."""
        for partial in sorted(self.checkpoint_folder.glob(f"{PARTIAL_PREFIX}*")):
            self.log.print(f"{partial} is not whole and is left aside")
        accelerator, progress = self.accelerator, self.progress
        if checkpoint:
            self.state.load(checkpoint, seed=self.seed, change_processes=self.change_processes)
            self.log.print(f"resuming after update {progress.update} from {checkpoint}")
        accelerator.wait_for_everyone()  # before the first process changes what the others look at
        if checkpoint and accelerator.is_main_process:
            # Under another number of updates it may be one to average, or no longer be one.
            is_scheduled = self._is_checkpoint_due() or progress.update >= self.recipe.num_updates
            checkpoint.rename(checkpoint.with_name(checkpoint_name(progress.update, is_scheduled=is_scheduled)))
        self.log.open(update=progress.update, num_bytes=progress.log_bytes)
        self._sitting_started = time.perf_counter() - progress.seconds

    def _tell_settings(self, num_parameters: int) -> None:
        recipe, accelerator = self.recipe, self.accelerator
        self.log.print(f"recipe {describe_recipe(recipe)}")
        if self.init_fingerprint is not None:
            self.log.print(f"starting from the weights of {self.init_from}, fingerprint {self.init_fingerprint}")
        self.log.print(
            f"{num_parameters:,} parameters, vocabulary of {len(self.tokenizer):,}; {len(self.train_pairs):,} pairs; "
            f"{recipe.num_updates:,} updates of up to {recipe.tokens_per_batch:,} tokens per side"
        )
        device = accelerator.device.type
        notes = [f"training on {accelerator.num_processes} x {device}", f"mixed precision {self.mixed_precision}"]
        if device == "cuda" and self.mixed_precision == "no":
            notes.append("float32 with TF32")
        if recipe.compile:
            notes.append("compiled: the first updates take minutes")
        if recipe.bucketed:
            notes.append("batches in buckets")
        self.log.print(", ".join(notes))
        if advice := advise_size(device, accelerator.unwrap_model(self.model).config.vocab_size):
            self.log.print(advice)

    def _tell_duration(self, seconds: float) -> None:
        """Tell how long the run will take if each update takes so many `seconds`."""
        rest = self.recipe.num_updates - self.progress.update
        duration = timedelta(seconds=int(rest * seconds))
        self.log.print(f"about {seconds:.2g} s per update: {duration} for the other {rest:,}, evaluations aside")

    def _is_finished(self) -> bool:
        patience = self.recipe.patience
        return self.progress.update >= self.recipe.num_updates or (
            patience is not None and self.progress.evaluations_without_gain >= patience
        )

    def _agree_to_stop(self) -> bool:
        """True if any process was asked to stop; all of them must then save."""
        own = torch.tensor(self._stop_request.received, device=self.accelerator.device).int()
        return bool(self.accelerator.reduce(own, "sum"))

    def _check_finite(self, update: Update) -> None:
        """End the run if too many updates in a row were skipped; `update` is the last one."""
        now, longest = self.tally.count_skipped_in_a_row()
        if longest < SKIPPED_IN_A_ROW:
            return
        place = "up to" if now == longest else "before"
        process, model = self.accelerator.process_index, self.accelerator.unwrap_model(self.model)
        batches = describe_batch(model, update, self.train_pairs, self.tokenizer)
        report = {"update": self.progress.update, "process": process, "micro_batches": batches}
        path = self.run_folder / f"{process}-{NON_FINITE_FILE}"
        path.write_text(json.dumps(report, ensure_ascii=False, indent=1), encoding="utf-8")
        raise FloatingPointError(
            f"{longest} updates in a row, {place} update {self.progress.update}, had a gradient that is not finite, "
            f"and were skipped. {path} names the first module with such an output and the pairs of the last batch. "
            f"The same command would come to the same end: name another output folder and start again, with mixed "
            f"precision bf16 or none, with another seed, or with a recipe of a smaller lr_scale or more warmup_updates."
        )

    def _log_training(self) -> None:
        progress, tally = self.progress, self.tally
        progress.seconds = time.perf_counter() - self._sitting_started
        means = tally.compute_means()
        place = {"update": progress.update, "epoch": progress.epoch}
        line = place | {"lr": self._lr, **means, "seconds": progress.seconds}
        self.log.write(line)
        remaining = timedelta(seconds=int((self.recipe.num_updates - progress.update) * tally.seconds / tally.updates))
        losses = "no finite update"
        if line["loss"] is not None:
            losses = f"loss {line['loss']:.3f}  ppl {line['perplexity']:.2f}"
        skipped = f"  skipped {line['skipped']}" if line["skipped"] else ""
        self.log.print(
            f"update {line['update']}/{self.recipe.num_updates}  epoch {line['epoch']}  {losses}  lr {line['lr']:.2e}  "
            f"{line['target_tokens_per_second']:.0f} tok/s  fill {line['fill']:.1%}{skipped}  ETA {remaining}",
            live=True,
        )
        tally.start_line()

    def _is_checkpoint_due(self) -> bool:
        """True if the recipe wants a checkpoint here, whatever its number of updates."""
        amount, unit = self.recipe.checkpoint_interval
        if unit == "epochs":
            return self.progress.updates_of_epoch == 0 and self.progress.epoch % amount == 0
        return self.progress.update % amount == 0

    def _evaluate(self) -> None:
        """Score the development set, and log it."""
        started, progress = time.perf_counter(), self.progress
        dev_loss, scores = self.dev_set.evaluate(self.model)
        self.model.train()
        if self._is_checkpoint_due():  # that of the end does not count: a longer run would not have it
            progress.note_evaluation(dev_loss)
        line = {"update": progress.update, "epoch": progress.epoch, **scores}
        self.log.write(line)
        shown = {name: f"{value:.4g}" if isinstance(value, float) else value for name, value in line.items()}
        self.log.print("  ".join(f"{name} {value}" for name, value in shown.items()))
        self.tally.leave_out(time.perf_counter() - started)

    def _save(self, *, is_scheduled: bool) -> None:
        started = time.perf_counter()
        self.progress.seconds = started - self._sitting_started
        self.state.save(self.log, keep=self.recipe.num_averaged_checkpoints, is_scheduled=is_scheduled)
        self.tally.leave_out(time.perf_counter() - started)
