"""Ensembles: several models translate together, by the mean of their probabilities.

    P(y | Y, X) = 1/M sum_m P_m(y | Y, X)        (M models, next word y, words so far Y, source X)

Each model has a separate encoder and cache. So the models may differ in everything except the vocabulary.

Shapes: B sentences of a batch, L sentences in the search, b beams, V vocab_size, S source tokens, P tokens of the
prompt, T tokens so far, D d_model.
"""

from collections.abc import Sequence

import torch
from torch import LongTensor, Tensor
from transformers.cache_utils import DynamicCache, EncoderDecoderCache

from ..engine.engine import Engine
from ..model.modeling_vaswani import VaswaniForConditionalGeneration
from ..model.search_vaswani import ForwardSteps, Steps


class Ensemble:
    """Several models that decode in place of one engine: `generate(..., engine=Ensemble([...]))`.

    Args:
        members: engines, or models. An engine computes the next words by its own code, a model by its `forward`.

    Raises:
        ValueError: if the vocabularies or special tokens of the members differ.
    """

    def __init__(self, members: Sequence[Engine | VaswaniForConditionalGeneration]):
        self.members = members
        configs = [member.config for member in members]
        learned = [config for config in configs if config.position_embedding_type == "learned"]
        # The shortest table of learned positions limits the length for all models.
        self.config = min(learned, key=lambda config: config.max_position_embeddings, default=configs[0])
        for name in ("vocab_size", "eos_token_id", "pad_token_id", "decoder_start_token_id"):
            values = [getattr(config, name) for config in configs]
            if any(value != values[0] for value in values):
                raise ValueError(
                    f"models of an ensemble must share one vocabulary, but their values of {name} are {values}. Train "
                    f"them on data prepared with the same tokenizer."
                )

    def encode(self, input_ids: LongTensor, attention_mask: Tensor | None) -> list[Tensor]:
        """Return a list with the encoding (B, S, D) of `input_ids` (B, S) by each member."""
        return [
            member.encode(input_ids, attention_mask)
            if isinstance(member, Engine)
            else member.get_encoder()(input_ids, attention_mask=attention_mask).last_hidden_state
            for member in self.members
        ]

    def start(
        self,
        encodings: list[Tensor],
        source_mask: Tensor | None,
        *,
        prompt: LongTensor,
        num_beams: int,
    ) -> tuple[Steps, Tensor]:
        """Read the prompt. Return the object that computes the next steps, and log P (L * b, V) after the prompt.

        Args:
            encodings: from `encode`.
            source_mask: (L, S), 0 at padding; `None` if nothing is padded.
            prompt: (L, P), the tokens with which the translations begin.
            num_beams: b.

        Raises:
            ValueError: if `encodings` is not from `encode`.
        """
        if not isinstance(encodings, list):
            raise ValueError(
                "an ensemble cannot use encoder_outputs, because each of its models encodes the source: give input_ids."
            )
        started = []
        for member, encoding in zip(self.members, encodings, strict=True):
            if isinstance(member, Engine):
                started.append(member.start(encoding, source_mask, prompt=prompt, num_beams=num_beams))
            else:
                cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
                steps = ForwardSteps(member, encoding, source_mask, num_beams=num_beams, cache=cache)
                started.append((steps, steps(prompt.repeat_interleave(num_beams, dim=0))))
        steps, logits = zip(*started, strict=True)
        return EnsembleSteps(steps), mean_log_probs(logits)


class EnsembleSteps:
    """The steps of all members of an ensemble."""

    # `ForwardSteps` keeps here what its last call of `forward` returned. An ensemble has no single output.
    outputs = None
    way = None  # The members are checked one by one, see `Translator`.

    def __init__(self, members: Sequence[Steps]):
        self.members = members

    def __call__(self, tokens: LongTensor) -> Tensor:
        """Return the log of the mean probability of each next word, (L * b, V), after `tokens` (L * b, T)."""
        return mean_log_probs([steps(tokens) for steps in self.members])

    def reorder(self, beams: Tensor, staying: Tensor | None) -> None:
        """Continue each sentence from the beams in its row of `beams` (L, b).

        If `staying` is given, continue only with the sentences at these indices.
        """
        for steps in self.members:
            steps.reorder(beams, staying)


def mean_log_probs(logits_of_models: Sequence[Tensor]) -> Tensor:
    """Return the log of the mean probability of each word, (L * b, V), from the logits of each model.

    If all models give a word the same probability, the result is exact. A logsumexp would round it.
    """
    log_probs = torch.stack([logits.float() for logits in logits_of_models]).log_softmax(dim=-1)
    highest = log_probs.amax(dim=0).clamp(min=torch.finfo(log_probs.dtype).min)
    return highest + (log_probs - highest).exp_().mean(dim=0).log_()
