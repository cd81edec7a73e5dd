"""Scores of the development set during training: perplexity, and BLEU if asked for."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from accelerate import Accelerator
from transformers import PreTrainedTokenizerFast

from ..data.batching import TokenizedPairs, plan_updates, split_update
from .progress import perplexity


@dataclass(frozen=True)
class DevelopmentSet:
    """Scores a model while it is trained."""

    accelerator: Accelerator
    pairs: TokenizedPairs
    texts: Path  # file of the same pairs as text, which `vaswani prepare` has written
    tokenizer: PreTrainedTokenizerFast
    # (model, tokenizer, pairs of text, process_index=, num_processes=) -> BLEU. All processes call it together and
    # share the translating, so that none waits for another until the launcher gives up.
    score: Callable[..., float] | None

    @torch.no_grad()
    def evaluate(self, model: torch.nn.Module) -> tuple[float, dict[str, float]]:
        """Return loss without label smoothing, in nats per token, and scores; all processes must call it together."""
        accelerator = self.accelerator
        model = accelerator.unwrap_model(model).eval()
        loss = self.compute_loss(model)
        scores = {"dev_perplexity": perplexity(loss)}
        if self.score is not None:
            texts = json.loads(self.texts.read_text(encoding="utf-8"))
            place = {"process_index": accelerator.process_index, "num_processes": accelerator.num_processes}
            autocast = vars(model).pop("forward", None)  # Accelerate's; around it no engine can be built
            try:
                scores["dev_bleu"] = self.score(model, self.tokenizer, texts, **place)
            finally:
                if autocast is not None:
                    model.forward = autocast
        accelerator.wait_for_everyone()
        return loss, scores

    def compute_loss(self, model: torch.nn.Module) -> float:
        """Return -log P of the development set in nats per token."""
        sources, targets = self.pairs.sources.lengths, self.pairs.targets.lengths
        accelerator, num_processes = self.accelerator, self.accelerator.num_processes
        tokens_per_batch = max(8_192, int(sources.max()), int(targets.max()))
        nll = torch.zeros((), device=accelerator.device)
        for rows in plan_updates(sources, targets, tokens_per_batch=tokens_per_batch, seed=0, epoch=0):
            part = split_update(rows, sources, targets, num_parts=num_processes)[accelerator.process_index]
            batch = self.pairs[part if len(part) else rows[:1]]
            batch = {name: tensor.to(accelerator.device) for name, tensor in batch.items()}
            nll += model(**batch, num_items_in_batch=1, skip_logits=True).loss * bool(len(part))
        return float(accelerator.reduce(nll, "sum")) / int(targets.sum())
