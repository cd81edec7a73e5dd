"""Scores of the development set during training: perplexity, and BLEU if asked for."""

import json
from collections.abc import Callable
from pathlib import Path

import torch
from accelerate import Accelerator
from transformers import PreTrainedTokenizerFast

from ..data.batching import TokenizedPairs, plan_updates, split_update
from .sharding import is_sharded
from .tally import perplexity, sum_dtype


class DevelopmentSet:
    """Scores a model while it is trained.

    Args:
        pairs: as token ids.
        texts: file of the same pairs as text, which `vaswani prepare` has written.
        score: (model, tokenizer, pairs of text, process_index=, num_processes=) -> BLEU; all processes call it
            together and share the translating, so that none waits for another until the launcher gives up.

    Raises:
        ValueError: if there is a `score` for a sharded model.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        pairs: TokenizedPairs,
        texts: Path,
        tokenizer: PreTrainedTokenizerFast,
        *,
        score: Callable[..., float] | None,
    ):
        if score is not None and is_sharded(accelerator):
            raise ValueError(
                "the development set cannot be translated during training where each process holds a part of the "
                "model only (FSDP): leave dev_bleu away, and run `vaswani evaluate` on the checkpoints."
            )
        self.accelerator, self.pairs, self.texts = accelerator, pairs, texts
        self.tokenizer, self.score = tokenizer, score

    @torch.no_grad()
    def evaluate(self, model: torch.nn.Module) -> tuple[float, dict[str, float]]:
        """Loss without label smoothing, in nats per token, and scores to log; all processes must call it together."""
        accelerator = self.accelerator
        # Without the wrapper of data parallelism; what is sharded takes part in every forward of all processes.
        model = model if is_sharded(accelerator) else accelerator.unwrap_model(model)
        model.eval()
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
        """-log P of the development set in nats per token."""
        sources, targets = self.pairs.sources.lengths, self.pairs.targets.lengths
        accelerator, num_processes = self.accelerator, self.accelerator.num_processes
        tokens_per_batch = max(8_192, int(sources.max()), int(targets.max()))
        nll = torch.zeros((), dtype=sum_dtype(accelerator.device), device=accelerator.device)
        for rows in plan_updates(sources, targets, tokens_per_batch=tokens_per_batch, seed=0, epoch=0):
            part = split_update(rows, sources, targets, num_parts=num_processes)[accelerator.process_index]
            batch = self.pairs[part if len(part) else rows[:1]]
            batch = {name: tensor.to(accelerator.device) for name, tensor in batch.items()}
            nll += model(**batch, num_items_in_batch=1, skip_logits=True).loss * bool(len(part))
        return float(accelerator.reduce(nll, "sum")) / int(targets.sum())
