"""The training loop (sections 5 and 6.1 of the paper). Accelerate runs it on any number of processes."""

import contextlib
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import torch
from accelerate import Accelerator
from tqdm import tqdm

from ..averaging import average_checkpoints
from ..data.batching import Update, UpdateStream
from ..files import write_folder
from ..runs import CARD_FILE, EXAMPLE_FILE, MODEL_FOLDER, averageable_checkpoints, checkpoint_name
from .interruption import Interrupted, StopRequest
from .progress import Tally, perplexity
from .run_folder import open_run
from .setup import RunParts

SKIPPED_IN_A_ROW = 10  # A run ends after this number of updates in a row without a finite gradient.
# The number of updates between two checks whether the run must stop. On a CPU, each update has a check. On any device,
# an update with a checkpoint has a check. At a check, all processes wait for each other, and each host waits for its
# device. Between two checks, the host may run ahead of a GPU.
UPDATES_PER_CHECK = 10


def train(parts: RunParts, *, title: str = "", finish: Callable[[Path], object] = lambda model: None) -> Path:
    """Train to the end of the recipe. If the run has a checkpoint, continue from the last one.

    Without dropout, an update depends on the number of processes and accumulation steps only by rounding errors. A run
    that was stopped and continued ends with the same weights as a run without a stop. The folder of the final model
    appears when it is complete, and replaces the folder of an earlier final model in one step.

    Args:
        title: the first line to print.
        finish: a function that may add files to the final model. It is called with the new folder of the model, before
            this folder gets its final name.

    Returns:
        the folder of the final model, the mean of the last checkpoints.

    Raises:
        ValueError: for the reasons that `open_run` names.
        FloatingPointError: if ten updates in a row had no finite gradient.
        OSError: if a checkpoint cannot be written. Earlier checkpoints are intact.
        Interrupted: if SIGTERM or Ctrl+C asked for a stop. At the next check (see `UPDATES_PER_CHECK`), a checkpoint is
            saved, and then this error is raised.
    """
    accelerator, log, model_folder = parts.accelerator, parts.log, parts.folder / MODEL_FOLDER
    with open_run(accelerator, parts.folder, parts.description, warn=log.print) as checkpoint:
        _print_settings(parts, title)
        if checkpoint:
            _restore(parts, checkpoint)
        log.open(update=parts.progress.update)
        with contextlib.closing(log), StopRequest() as stop_request:
            if parts.recipe.is_finished(parts.progress):
                log.print("the run is finished: to continue, give a larger num_updates or a larger patience by --set")
            else:
                _run_updates(parts, stop_request)
        accelerator.wait_for_everyone()
        count = _average(parts, model_folder, finish)
        dev_perplexity = perplexity(parts.dev_set.compute_loss(parts.model))
        log.print(
            f"averaged {count} checkpoint{'s' * (count > 1)} into {model_folder}: "
            f"perplexity of the development set {dev_perplexity:.6g}"
        )
        if dev_perplexity > parts.recipe.vocab_size:
            log.print(
                f"WARNING: a uniform guess would have perplexity {parts.recipe.vocab_size}, the size of the "
                f"vocabulary. Train longer, or begin a new run with a lower --set lr_scale."
            )
        card = model_folder / CARD_FILE
        if card.exists():
            log.print(f"{card} describes the previous model: replace it by `vaswani card --run ... --output {card}`")
        return model_folder


def _run_updates(parts: RunParts, stop_request: StopRequest) -> None:
    """Run updates until the number of the recipe is reached, its patience is used up, or a stop is requested."""
    recipe, progress, tally = parts.recipe, parts.progress, parts.tally
    interval = 1 if parts.accelerator.device.type == "cpu" else UPDATES_PER_CHECK
    # A resumed run goes on counting from `progress.seconds`, so its start is set back by that time.
    started = time.perf_counter() - progress.seconds
    parts.model.train()
    with tqdm(
        initial=progress.update,
        total=recipe.num_updates,
        unit=" updates",
        leave=False,
        disable=None if parts.accelerator.is_main_process else True,  # None: show the bar in a terminal
    ) as bar:
        for update in read_updates(parts):
            lr = run_update(parts, update)  # forward, backward, step, schedule
            progress.count(update)
            bar.update()
            number = progress.update
            is_due = recipe.is_checkpoint_due(progress)
            must_stop = False
            if number % interval == 0 or is_due:
                must_stop = _agree_to_stop(parts.accelerator, stop_request)
                _check_finite(tally, number)
            if number % parts.log_interval == 0 or number >= recipe.num_updates:
                progress.seconds = time.perf_counter() - started
                _log_training(parts, lr)
            if is_due:
                with tally.pause():
                    dev_loss = _evaluate(parts)
                # An evaluation that is due only because the run ends does not count for the patience, because a run
                # with more updates would have no evaluation at this update.
                if recipe.is_interval_complete(progress):
                    progress.note_evaluation(dev_loss)
            if is_due or must_stop:
                progress.seconds = time.perf_counter() - started
                with tally.pause():
                    parts.checkpoints.save(is_scheduled=is_due)
            if recipe.is_finished(progress):
                return
            if must_stop:
                # A launcher ends all processes when the first one ends, and the main process may still be saving.
                parts.accelerator.wait_for_everyone()
                raise Interrupted(f"stopped after update {number} and saved; the same command continues from there.")


def run_update(parts: RunParts, update: Update) -> float:
    """Make one optimizer step of a model in training mode; return the learning rate of the step.

    The loss is the mean over the target tokens of all processes and micro-batches.
    """
    accelerator, optimizer = parts.accelerator, parts.optimizer
    device = accelerator.device
    # The host waits for a GPU when it copies from memory that is not pinned.
    pin = torch.Tensor.pin_memory if device.type == "cuda" else lambda tensor: tensor
    losses = torch.zeros(2, device=device)
    for i, batch in enumerate(update.micro_batches):
        is_last = i == len(update.micro_batches) - 1
        batch = {name: pin(tensor).to(device, non_blocking=True) for name, tensor in batch.items()}
        # The processes exchange gradients once in an update, with the last micro-batch.
        with contextlib.nullcontext() if is_last else accelerator.no_sync(parts.model):
            output = parts.forward(**batch, num_items_in_batch=1)  # sums over the tokens of this micro-batch
            # Divided by all target tokens, the loss is the mean over the whole update. The factor `num_processes` is
            # there because data parallelism divides the gradients by it.
            accelerator.backward(output.loss * (accelerator.num_processes / update.target_tokens))
        losses += torch.stack([output.loss.detach(), output.nll_loss])
    # The parameters are read from the optimizer, because `model.parameters()` visits all modules, which takes 1 ms.
    parameters = optimizer.param_groups[0]["params"]
    norm = torch.nn.utils.get_total_norm([parameter.grad for parameter in parameters if parameter.grad is not None])
    is_finite = norm.isfinite()
    if accelerator.scaler is None:
        # If this flag is 1, the fused kernel leaves the weights and Adam's averages unchanged. The flag stays on the
        # device, so the host does not wait for it.
        optimizer.optimizer.found_inf = (~is_finite).float()
    optimizer.step()
    lr = parts.schedule.get_last_lr()[0]
    parts.schedule.step()
    optimizer.zero_grad()
    parts.tally.add(losses, is_finite, update)
    return lr


def read_updates(parts: RunParts) -> Iterator[Update]:
    """Return an iterator over the remaining updates of this process.

    No worker process prepares the updates. On one core, an update of 25,000 tokens is prepared in 0.7 ms. A worker that
    is forked beside the threads of gloo or NCCL may never answer.
    """
    accelerator, recipe, progress = parts.accelerator, parts.recipe, parts.progress
    return iter(
        UpdateStream(
            parts.train_pairs,
            tokens_per_batch=recipe.tokens_per_batch,
            seed=parts.description["seed"],
            short_first=recipe.short_first,
            epoch=progress.epoch,
            updates_of_epoch=progress.updates_of_epoch,
            num_processes=accelerator.num_processes,
            process_index=accelerator.process_index,
            accumulation_steps=parts.accumulation_steps,
        )
    )


def _print_settings(parts: RunParts, title: str) -> None:
    """Print `title` and the settings of the run."""
    log, description = parts.log, parts.description
    if title:
        log.print(title)
    facts = {"device": description["device"], "pairs": len(parts.train_pairs)} | description
    log.print(", ".join(f"{name} {value}" for name, value in facts.items() if name != "recipe"))
    if parts.recipe.compile:
        log.print("compiling: the first updates take minutes")


def _restore(parts: RunParts, checkpoint: Path) -> None:
    """Restore the state of the run from `checkpoint`."""
    accelerator, progress = parts.accelerator, parts.progress
    parts.checkpoints.load(checkpoint, seed=parts.description["seed"], warn=parts.log.print)
    parts.log.print(f"resuming after update {progress.update} from {checkpoint}")
    accelerator.wait_for_everyone()  # The main process renames the checkpoint only after all processes have read it.
    if accelerator.is_main_process:
        # The name says whether the checkpoint will be averaged. This depends on the recipe's number of updates, which
        # may have changed since the checkpoint was written.
        name = checkpoint_name(progress.update, is_scheduled=parts.recipe.is_checkpoint_due(progress))
        checkpoint.rename(checkpoint.with_name(name))


def _agree_to_stop(accelerator: Accelerator, stop_request: StopRequest) -> bool:
    """Return True if any process was asked to stop. All processes get the same answer, so that all save together."""
    received = torch.tensor(stop_request.received, device=accelerator.device).int()
    return bool(accelerator.reduce(received, "sum"))


def _check_finite(tally: Tally, update: int) -> None:
    """Raise a FloatingPointError if `SKIPPED_IN_A_ROW` or more updates in a row, up to `update`, were skipped."""
    skipped = tally.count_skipped_in_a_row()
    if skipped >= SKIPPED_IN_A_ROW:
        raise FloatingPointError(
            f"{skipped} updates in a row, up to update {update}, were skipped, because their gradients are not finite. "
            f"The same command would fail again. Name another output folder, and start again with bf16, a smaller "
            f"lr_scale or more warmup_updates."
        )


def _log_training(parts: RunParts, lr: float) -> None:
    """Write a line of the log, and start the sums of the next line."""
    progress, tally = parts.progress, parts.tally
    line = {
        "update": progress.update,
        "epoch": progress.epoch,
        "lr": lr,
        **tally.compute_means(),
        "seconds": progress.seconds,
    }
    remaining = timedelta(seconds=int((parts.recipe.num_updates - progress.update) * tally.seconds / tally.updates))
    parts.log.write(line, remaining=remaining)
    tally.start_line()


def _evaluate(parts: RunParts) -> float:
    """Log the scores of the development set, and print sample translations. Return the loss in nats per token."""
    dev_loss, scores, samples = parts.dev_set.evaluate(parts.model)
    parts.model.train()
    parts.log.write({"update": parts.progress.update, "epoch": parts.progress.epoch, **scores})
    for sample in samples:
        parts.log.print(sample)
    return dev_loss


def _average(parts: RunParts, folder: Path, finish: Callable[[Path], object]) -> int:
    """Write the mean of the last checkpoints into `folder`, and load this mean into the model.

    Return the number of these checkpoints. All processes must call this function together.
    """
    checkpoints = parts.checkpoints
    to_average = averageable_checkpoints(checkpoints.folder)[-checkpoints.keep :]
    if parts.accelerator.is_main_process:
        with write_folder(folder, stale=[EXAMPLE_FILE]) as new_folder:
            average_checkpoints(to_average, new_folder)
            finish(new_folder)
    parts.accelerator.wait_for_everyone()
    checkpoints.load_weights(folder)
    return len(to_average)
