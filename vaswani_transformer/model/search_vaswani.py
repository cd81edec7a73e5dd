"""The search of section 6.1 as a function: steps give logits, `BeamSearch` grows the hypotheses, until all is decided.

Shapes: L sentences still in the search, b beams, T tokens so far, V vocab_size.
"""

from collections.abc import Callable, Sequence

import torch
from transformers import GenerationConfig
from transformers.generation import LogitsProcessorList, StoppingCriteriaList
from transformers.generation.utils import GenerateBeamEncoderDecoderOutput

from .beam_search_vaswani import BeamSearch
from .ensemble_vaswani import mean_log_probs
from .steps_vaswani import Steps


class Records:
    """What `return_dict_in_generate` asks to be kept of each step."""

    def __init__(self, config: GenerationConfig):
        self.config, self.as_dict = config, bool(config.return_dict_in_generate)
        asked = {
            "scores": config.output_scores,
            "logits": config.output_logits,
            "decoder_attentions": config.output_attentions,
            "cross_attentions": config.output_attentions,
            "decoder_hidden_states": config.output_hidden_states,
        }
        self.steps: dict[str, tuple] = {name: () for name, flag in asked.items() if flag and self.as_dict}

    @property
    def wants_states(self) -> bool:
        """True if something from inside the decoder is asked for."""
        return not self.steps.keys() <= {"scores", "logits"}

    def add(self, outputs, logits: torch.Tensor, log_probs: torch.Tensor) -> None:
        """Keep what is asked for of one step: `outputs` of `forward`, `logits` and `log_probs` (L * b, V)."""
        for name in self.steps:
            own = {"scores": log_probs, "logits": logits}
            self.steps[name] += (own[name] if name in own else getattr(outputs, name),)

    def result(self, search: BeamSearch, encoder_outputs, cache) -> torch.LongTensor | GenerateBeamEncoderDecoderOutput:
        """What `generate` returns: the best hypotheses of `search`, with the records if a dict is asked for."""
        config = self.config
        tokens, scores, parents = search.best(config.num_return_sequences)
        if not self.as_dict:
            return tokens
        return GenerateBeamEncoderDecoderOutput(
            sequences=tokens,
            sequences_scores=scores,  # without output_scores too: they cost nothing, unlike those of all words
            beam_indices=parents,
            encoder_attentions=encoder_outputs.get("attentions") if config.output_attentions else None,
            encoder_hidden_states=encoder_outputs.get("hidden_states") if config.output_hidden_states else None,
            past_key_values=cache,
            **self.steps,
        )


def run_search(
    search: BeamSearch,
    members: Sequence[Steps],
    records: Records,
    *,
    processors: LogitsProcessorList,
    criteria: StoppingCriteriaList,
    may_leave: bool,
    widen: Callable[[torch.Tensor], torch.Tensor],
    goes_on: Callable[[bool], bool],
) -> None:
    """Grow the hypotheses of `search` until every sentence is decided.

    Args:
        members: the steps of each model; several are an ensemble.
        records: gets what each step leaves.
        processors: what else changes log P, (rows, T) tokens and (rows, V) -> (rows, V).
        criteria: what else ends a hypothesis.
        may_leave: True where sentences that are done may leave the batch.
        widen: log P over a shortlist -> over the vocabulary that `processors` and `records` see.
        goes_on: whether to take a step more, given that all is decided here: with `synced_gpus` processes wait for
            each other.
    """
    all_done, last_limit = False, max(search.limit_lengths)
    while goes_on(all_done):
        logits_of_models = [steps(search.flat_tokens) for steps in members]
        if all_done:  # with `synced_gpus` the other processes still need this one's forward passes
            continue
        logits_of_models = [logits.float() for logits in logits_of_models]
        log_probs = mean_log_probs(
            [
                # In place where the step gives the logits away: new memory in each step has to be mapped first.
                torch.log_softmax(logits, dim=-1, out=logits if steps.owns_logits and not records.steps else None)
                for logits, steps in zip(logits_of_models, members, strict=True)
            ]
        )
        logits = log_probs if len(members) > 1 else logits_of_models[0]
        log_probs = search.restrict(processors(search.flat_tokens, widen(log_probs)))
        if records.steps:
            records.add(members[0].outputs, widen(logits), log_probs)
        stops = None if not criteria else (lambda tokens: criteria(tokens, records.steps.get("scores")))
        beams = search.advance(log_probs, stops)
        done = search.done.tolist()
        all_done = search.length == last_limit or all(done)
        staying = find_staying(done) if may_leave and not all_done else None
        if staying is not None:
            staying = torch.tensor(staying, device=beams.device)
            search.leave(staying)
        for steps in members:
            steps.follow(beams, staying)


def find_staying(done: Sequence[bool]) -> list[int] | None:
    """Places of the sentences to go on with, the last ones in the gaps, so that few move; `None` if all shall stay.

    Some that are done stay too, so that batches have few sizes: for each new one oneDNN makes kernels, which took
    8 % of a search of 64 sentences.
    """
    count = len(done) - sum(done)
    unit = 2 ** max(0, (count - 1).bit_length() - 3)  # at most four sizes between two powers of 2
    count = -(-count // unit) * unit
    if count >= len(done):
        return None
    movers = (place for place in range(count, len(done)) if not done[place])
    return [next(movers, place) if done[place] else place for place in range(count)]


def as_shortlist(
    shortlist: Sequence[int] | torch.Tensor, end_token_ids: list[int], vocab_size: int, device: torch.device
) -> torch.LongTensor:
    """The ids of `shortlist` and the end tokens, each once, in ascending order."""
    ids = torch.as_tensor(shortlist, device=device)
    if ids.dim() != 1 or not len(ids) or ids.dtype == torch.bool or ids.is_floating_point():
        raise ValueError(
            f"shortlist must be token ids, one row of at least one integer, got a {tuple(ids.shape)} of {ids.dtype}."
        )
    if ids.min() < 0 or ids.max() >= vocab_size:
        raise ValueError(
            f"shortlist must hold ids from 0 to {vocab_size - 1}, got {int(ids.min())} to {int(ids.max())}."
        )
    return torch.cat([ids.long(), ids.new_tensor(end_token_ids, dtype=torch.long)]).unique()


def spread(scores: torch.Tensor, *, shortlist: torch.LongTensor, vocab_size: int) -> torch.Tensor:
    """`scores` (rows, words of the shortlist) over the whole vocabulary, with -inf at all others."""
    return scores.new_full((len(scores), vocab_size), -torch.inf).index_copy_(1, shortlist, scores)
