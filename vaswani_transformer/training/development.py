"""Scores of the development set during training: perplexity, BLEU on request, and translations to look at."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from accelerate import Accelerator
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from ..data.batching import TokenizedPairs, plan_updates, split_update
from .progress import perplexity

NUM_SAMPLES = 3  # Translations of so many sentences are printed, from the start of the development set.


@dataclass(frozen=True)
class DevelopmentSet:
    """The development set, by which a model is scored during training."""

    accelerator: Accelerator
    pairs: TokenizedPairs
    texts: Path  # file of `vaswani prepare` with the same pairs as text
    tokenizer: PreTrainedTokenizerFast
    # This function computes BLEU of (model, tokenizer, pairs of text, process_index=, num_processes=). All processes
    # call it together and share the translations. If one process did all, the others might wait until the launcher ends
    # them.
    score: Callable[..., float] | None

    @torch.no_grad()
    def evaluate(self, model: torch.nn.Module) -> tuple[float, dict[str, float], list[str]]:
        """Evaluate `model`. All processes must call it together.

        Returns:
            the loss without label smoothing, in nats per token; the scores; and lines of samples, empty except in the
            main process.
        """
        accelerator = self.accelerator
        loss = self.compute_loss(model)
        model = accelerator.unwrap_model(model)
        scores = {"dev_perplexity": perplexity(loss)}
        samples = []
        texts = json.loads(self.texts.read_text(encoding="utf-8"))
        # Accelerate has put autocast into `forward`, and no engine can be built of such a model.
        autocast = vars(model).pop("forward", None)
        try:
            if self.score is not None:
                place = {"process_index": accelerator.process_index, "num_processes": accelerator.num_processes}
                scores["dev_bleu"] = self.score(model, self.tokenizer, texts, **place)
            if accelerator.is_main_process:
                samples = self._translate([source for source, _ in texts[:NUM_SAMPLES]], model)
        finally:
            if autocast is not None:
                model.forward = autocast
        accelerator.wait_for_everyone()
        return loss, scores, samples

    def _translate(self, sources: list[str], model: PreTrainedModel) -> list[str]:
        """Return a line for each of `sources`, with its greedy translation."""
        inputs = self.tokenizer(sources, return_tensors="pt", padding=True, verbose=False).to(model.device)
        found = model.generate(**inputs, num_beams=1, length_penalty=1.0, early_stopping=False)
        texts = self.tokenizer.batch_decode(found, skip_special_tokens=True)
        return [f"  {source} -> {' '.join(text.split())}" for source, text in zip(sources, texts, strict=True)]

    @torch.no_grad()
    def compute_loss(self, model: torch.nn.Module) -> float:
        """Return -log P of the development set in nats per token. All processes must call it together."""
        sources, targets = self.pairs.sources.lengths, self.pairs.targets.lengths
        accelerator, num_processes = self.accelerator, self.accelerator.num_processes
        model = accelerator.unwrap_model(model).eval()
        tokens_per_batch = max(8_192, int(sources.max()), int(targets.max()))
        nll = torch.zeros((), device=accelerator.device)
        for rows in plan_updates(sources, targets, tokens_per_batch=tokens_per_batch, seed=0, epoch=0):
            part = split_update(rows, sources, targets, num_parts=num_processes)[accelerator.process_index]
            batch = self.pairs[part if len(part) else rows[:1]]
            batch = {name: tensor.to(accelerator.device) for name, tensor in batch.items()}
            nll += model(**batch, num_items_in_batch=1, skip_logits=True).loss * bool(len(part))
        return float(accelerator.reduce(nll, "sum")) / int(targets.sum())
