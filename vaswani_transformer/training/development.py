"""Scores of the development set during training: perplexity, BLEU on request, and translations to look at."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten

import torch
from accelerate import Accelerator
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from ..data.batching import TokenizedPairs, plan_updates, split_update
from .progress import perplexity

NUM_SAMPLES = 3  # The number of sentences at the start of the development set whose translations are printed.


@dataclass(frozen=True)
class DevelopmentSet:
    """The development set, by which a model is scored during training."""

    accelerator: Accelerator
    pairs: TokenizedPairs
    texts: Path  # the file dev.json of the prepared data, which has the text of `pairs`
    tokenizer: PreTrainedTokenizerFast
    # A function that computes BLEU from (model, tokenizer, pairs of text, process_index=, num_processes=). All
    # processes call it together, and each translates a share of the pairs. If one process translated all pairs, the
    # others could wait longer than the timeout of their process group, and the run would end. None: no BLEU.
    score: Callable[..., float] | None

    def evaluate(self, model: torch.nn.Module) -> tuple[float, dict[str, float], list[str]]:
        """Evaluate `model`. All processes must call it together.

        Returns:
            the loss without label smoothing, in nats per token; the scores by name; and a line for each sample
            translation. The samples are empty in all processes except the main process.
        """
        accelerator = self.accelerator
        loss = self.compute_loss(model)
        model = accelerator.unwrap_model(model)
        scores = {"dev_perplexity": perplexity(loss)}
        samples = []
        texts = json.loads(self.texts.read_text(encoding="utf-8"))
        # With mixed precision, Accelerate has replaced `forward` by a wrapper with autocast. The wrapper is taken away
        # for the translations, because no `Engine` (the fast decoder) can be built of a model with a replaced
        # `forward`. Such a model decodes by its `forward`, which is slower.
        wrapped_forward = vars(model).pop("forward", None)
        if self.score is not None:
            scores["dev_bleu"] = self.score(
                model,
                self.tokenizer,
                texts,
                process_index=accelerator.process_index,
                num_processes=accelerator.num_processes,
            )
        if accelerator.is_main_process:
            samples = self._translate([source for source, _ in texts[:NUM_SAMPLES]], model)
        if wrapped_forward is not None:
            model.forward = wrapped_forward
        accelerator.wait_for_everyone()
        return loss, scores, samples

    def _translate(self, sources: list[str], model: PreTrainedModel) -> list[str]:
        """Return a line for each sentence of `sources`: the sentence and its greedy translation."""
        inputs = self.tokenizer(sources, return_tensors="pt", padding=True, verbose=False).to(model.device)
        outputs = model.generate(**inputs, num_beams=1, length_penalty=1.0, early_stopping=False)
        texts = self.tokenizer.batch_decode(outputs, skip_special_tokens=True)
        return [
            f"  {source} -> {shorten(text, 150, placeholder=' ...')}"
            for source, text in zip(sources, texts, strict=True)
        ]

    @torch.no_grad()
    def compute_loss(self, model: torch.nn.Module) -> float:
        """Return -log P of the development set in nats per token. All processes must call it together."""
        sources, targets = self.pairs.sources.lengths, self.pairs.targets.lengths
        accelerator = self.accelerator
        model = accelerator.unwrap_model(model).eval()
        tokens_per_batch = max(8_192, int(sources.max()), int(targets.max()))
        nll = torch.zeros((), device=accelerator.device)
        for rows in plan_updates(sources, targets, tokens_per_batch=tokens_per_batch, seed=0, epoch=0):
            part = split_update(rows, sources, targets, num_parts=accelerator.num_processes)[accelerator.process_index]
            # A batch cannot be empty. So a process with an empty part computes one pair, whose loss counts as 0.
            batch = self.pairs[part if len(part) else rows[:1]]
            batch = {name: tensor.to(accelerator.device) for name, tensor in batch.items()}
            nll += model(**batch, num_items_in_batch=1, skip_logits=True).loss * bool(len(part))
        return float(accelerator.reduce(nll, "sum")) / int(targets.sum())
