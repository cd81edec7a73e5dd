"""Beam search as in section 6.1 of the paper: the hypotheses, their scores, and when a sentence is decided.

A finished hypothesis Y of source X scores (Wu et al. 2016, equation 14)

    s(Y, X) = log P(Y | X) / lp(Y)        lp(Y) = ((5 + |Y|) / 6)^alpha

with |Y| its tokens, </s> included. Running hypotheses, all of one length, compete by log P. A sentence may grow to its
own source length + 50 tokens, with whatever others it shares a batch; under `early_stopping="never"` its search ends as
soon as no open hypothesis can win.

Shapes: B sentences, L sentences still in the search (those open and a few that are done), b beams, V vocab_size or the
length of a shortlist, T tokens so far.
"""

from collections.abc import Callable, Sequence

import torch
from torch import nn

Length = int | torch.Tensor

ROOM = 16  # tokens by which histories grow
NUM_COLUMNS = 256  # at least, of `best_sums`
FEW_SUMS = 100_000  # folding them takes as long as PyTorch's `topk`


def gnmt_length_penalty(length: Length, alpha: float) -> float | torch.Tensor:
    """lp(Y) = ((5 + |Y|) / 6)^alpha      (Wu et al. 2016, equation 14)"""
    return ((5 + length) / 6) ** alpha


def power_length_penalty(length: Length, alpha: float) -> float | torch.Tensor:
    """|Y|^alpha, the penalty of transformers' own beam search."""
    return length ** float(alpha)  # whole powers of whole numbers overflow, and may not be negative


LENGTH_PENALTIES: dict[str, Callable[[Length, float], float | torch.Tensor]] = {
    "gnmt": gnmt_length_penalty,
    "power": power_length_penalty,
}
PENALISED_LENGTHS = {"gnmt": "((5 + tokens) / 6)", "power": "tokens"}  # what each raises to alpha, in words


class BeamSearch:
    """The hypotheses of a batch: running beams of the sentences still open, finished ones of all.

    Args:
        prompt: (B * b, P) decoder tokens to start from, equal within a sentence.
        num_beams: b.
        num_kept: finished hypotheses to keep for each sentence.
        limits: (B,) new tokens a sentence may get, </s> included.
        must_end: (B,) True where only a token that finishes a hypothesis may come last at the limit, False where the
            limit cuts: a hypothesis that reaches it is finished as it stands.
        length_penalty: |Y| -> lp(Y).
        early_stopping: "never" ends a sentence when no open hypothesis can beat the worst kept one at any length
            up to the limit; False judges by the present length (a guess); True ends it with `num_kept` finished.
        eos_token_ids: tokens that finish a hypothesis.
        pad_token_id: fills short rows of the result.
        forced_token_ids: tokens that alone may come last at the limit, at probability 1; when there are none, it is
            those that finish a hypothesis, at their own.
        shortlist: (V,) the tokens that the scores are of; `None` for the whole vocabulary.
        can_rise: whether a hypothesis may gain in going on; then "never" searches up to the limit.
        do_sample: draw continuations instead of taking the best.
    """

    def __init__(
        self,
        prompt: torch.LongTensor,
        *,
        num_beams: int,
        num_kept: int,
        limits: torch.Tensor,
        must_end: torch.Tensor,
        length_penalty: Callable[[Length], float | torch.Tensor],
        early_stopping: bool | str,
        eos_token_ids: list[int],
        pad_token_id: int,
        forced_token_ids: Sequence[int] = (),
        shortlist: torch.LongTensor | None = None,
        can_rise: bool = False,
        do_sample: bool = False,
    ):
        device = prompt.device
        num_sentences, self.prompt_length = prompt.shape[0] // num_beams, prompt.shape[1]
        self.num_beams = num_beams
        self.limits = limits.clamp(min=1)
        self.must_end = must_end
        self.length_penalty = length_penalty
        self.early_stopping = early_stopping
        self.eos_token_ids = eos_token_ids
        self.end_tokens = torch.tensor(eos_token_ids, dtype=torch.long, device=device)
        self.is_forced = bool(forced_token_ids)
        self.shortlist = shortlist
        self.can_rise = can_rise
        self.last_tokens = torch.tensor(list(forced_token_ids or eos_token_ids), dtype=torch.long, device=device)
        if shortlist is not None:  # their places in it
            self.last_tokens = torch.searchsorted(shortlist, self.last_tokens)
        self.pad_token_id = pad_token_id
        self.do_sample = do_sample
        # The lengths that are a limit of some sentence, and those at which a token must end it.
        limits_on_host = self.limits.tolist()
        self.limit_lengths = set(limits_on_host)
        self.end_lengths = {limit for limit, ends in zip(limits_on_host, must_end.tolist(), strict=True) if ends}

        self.length = 0  # new tokens so far
        self.places = torch.arange(num_sentences, device=device)  # (L,) in the batch, of those still in the search
        self.done = torch.zeros(num_sentences, dtype=torch.bool, device=device)  # (L,) done but still here
        # (2, L, b, T and room): tokens, and the beam that each grew from, -1 in the prompt and behind the end
        self.history = torch.stack((prompt, torch.full_like(prompt, -1))).unflatten(1, (num_sentences, num_beams))
        # All beams start equal: only the first may grow, or the b best continuations would be b times the same.
        self.scores = torch.full((num_sentences, num_beams), -torch.inf, device=device)
        self.scores[:, 0] = 0.0
        self.limit_penalties = length_penalty(self.limits)

        self.kept_scores = torch.full((num_sentences, num_kept), -torch.inf, device=device)
        self.kept_history = self.history[:, :, :1].expand(-1, -1, num_kept, -1)  # (2, L, num_kept, T and room)
        self.left: list[tuple[torch.Tensor, ...]] = []  # places, kept scores and histories before each leaving

    @property
    def flat_tokens(self) -> torch.LongTensor:
        """(L * b, T) as the model reads them."""
        return self.history[0].flatten(0, 1)[:, : self.prompt_length + self.length]

    def restrict(self, log_probs: torch.Tensor) -> torch.Tensor:
        """`log_probs` (L * b, V) of the next token with -inf at what may not come.

        Where an end is forced it is 0, so that what is recorded of the step adds up to the score of a hypothesis.
        """
        if self.length + 1 not in self.end_lengths:
            return log_probs
        must_end = ((self.limits == self.length + 1) & self.must_end).repeat_interleave(self.num_beams)
        return only_end(log_probs, must_end, self.last_tokens, self.is_forced)

    def advance(
        self,
        log_probs: torch.Tensor,
        stops: Callable[[torch.LongTensor], torch.Tensor] | None,
    ) -> torch.Tensor:
        """Grow every running beam by one token.

        Args:
            log_probs: (L * b, V) of the next token, as `restrict` leaves them.
            stops: further criteria, (rows, T) tokens -> (rows,) True where the hypothesis is finished.

        Returns:
            (L, b) the beam each new one grew from.
        """
        scores, beams, words = self._best_continuations(log_probs)  # (L, candidates) each
        if self.shortlist is not None:
            words = self.shortlist[words]
        history = self._grow(beams, words)
        self.length += 1
        finished = (words[..., None] == self.end_tokens).any(dim=-1)
        if self.length in self.limit_lengths:
            finished = finished | (self.limits == self.length)[:, None]
        if stops is not None:
            tokens = history[0, :, :, : self.prompt_length + self.length]
            finished = finished | stops(tokens.flatten(0, 1)).unflatten(0, finished.shape)
        if (finished & (scores > -torch.inf)).any():
            self._keep(scores / self.length_penalty(self.length), history, finished)
            scores = scores.masked_fill(finished, -torch.inf)
        self.scores, order = scores.topk(self.num_beams)
        self.history = _pick(history, order)
        self.done = self._is_decided()
        self.scores = self.scores.masked_fill(self.done[:, None], -torch.inf)  # nothing more is found of them
        return beams.gather(1, order)

    def leave(self, staying: torch.Tensor) -> None:
        """Go on with the sentences at the places `staying` (n,) only."""
        self.left.append((self.places, self.kept_scores, self.kept_history))
        for name in ("places", "limits", "must_end", "limit_penalties", "scores", "done", "kept_scores"):
            setattr(self, name, getattr(self, name)[staying])
        self.history, self.kept_history = self.history[:, staying], self.kept_history[:, staying]

    def best(self, count: int) -> tuple[torch.LongTensor, torch.Tensor, torch.LongTensor]:
        """The `count` best hypotheses of each sentence, best first, cropped to the longest of them.

        Returns:
            tokens (B * count, T), scores (B * count,), and the rows (of B * b) that each new token
            grew from (B * count, T - P), -1 behind the end. A sentence with fewer hypotheses gets empty ones of
            score -inf.
        """
        scores, history = self._gather_kept()
        scores = scores[:, :count].flatten()
        tokens, parents = history[:, :, :count].flatten(1, 2)
        parents = parents[:, self.prompt_length :].masked_fill((scores == -torch.inf)[:, None], -1)
        longest = int((parents >= 0).sum(dim=-1).max()) if parents.numel() else 0
        parents = parents[:, :longest]
        is_behind_end = parents < 0
        new = tokens[:, self.prompt_length :][:, :longest].masked_fill(is_behind_end, self.pad_token_id)
        first_rows = torch.arange(len(history[0]), device=new.device).repeat_interleave(count) * self.num_beams
        parents = torch.where(is_behind_end, -1, parents + first_rows[:, None])
        return torch.cat([tokens[:, : self.prompt_length], new], dim=-1), scores, parents

    def _gather_kept(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Kept scores (B, num_kept) and histories (2, B, num_kept, T and room), also of the sentences that left."""
        parts = *self.left, (self.places, self.kept_scores, self.kept_history)
        num_sentences, [_, _, num_kept, length] = len(parts[0][0]), self.kept_history.shape
        scores = self.kept_scores.new_empty(num_sentences, num_kept)
        histories = self.kept_history.new_full((2, num_sentences, num_kept, length), -1)
        for places, some_scores, some in parts:
            scores[places] = some_scores
            histories[:, places, :, : some.shape[-1]] = some
        return scores, histories

    def _best_continuations(self, log_probs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Scores, beams and words, each (L, candidates), of log_probs (L * b, V)."""
        vocab_size = log_probs.shape[-1]
        # As many as could finish and still leave b to go on with.
        count = min(max(2, 1 + len(self.eos_token_ids)) * self.num_beams, self.num_beams * vocab_size)
        log_probs = log_probs.unflatten(0, self.scores.shape)
        if not self.do_sample:
            return best_sums(self.scores, log_probs, count)
        totals = (self.scores[:, :, None] + log_probs).flatten(1)  # (L, b * V)
        # Hopeless continuations stay drawable: at a sentence's limit there may be fewer than `count` others.
        # Where no hypothesis is open any more the softmax has no value.
        probs = totals.softmax(dim=-1).nan_to_num().clamp(min=torch.finfo(totals.dtype).tiny)
        choice = torch.multinomial(probs, count)
        scores, order = totals.gather(1, choice).sort(descending=True)
        choice = choice.gather(1, order)
        return scores, choice // vocab_size, choice % vocab_size

    def _grow(self, beams: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        """The histories of `beams` (L, n) with a word more each, (2, L, n, T + 1 and room)."""
        place = self.prompt_length + self.length
        if place >= self.history.shape[-1]:
            self.history, self.kept_history = (
                nn.functional.pad(history, (0, ROOM), value=-1) for history in (self.history, self.kept_history)
            )
        history = _pick(self.history, beams)
        history[0, :, :, place], history[1, :, :, place] = words, beams
        return history

    def _keep(self, penalised: torch.Tensor, history: torch.Tensor, finished: torch.Tensor) -> None:
        """Merge newly finished hypotheses among the b best into the kept ones."""
        # A candidate past the b best is there to go on with; it may not finish (as in transformers).
        b = self.num_beams
        new = torch.where(finished[:, :b], penalised[:, :b], -torch.inf)
        self.kept_scores, order = torch.cat([self.kept_scores, new], dim=1).topk(self.kept_scores.shape[1])
        self.kept_history = _pick(torch.cat([self.kept_history, history[:, :, :b]], dim=2), order)

    def _is_decided(self) -> torch.Tensor:
        """(L,) True where no running beam can beat the worst kept hypothesis."""
        worst, best_open = self.kept_scores[:, -1], self.scores[:, 0]
        if self.early_stopping is True:
            return (worst > -torch.inf) | (best_open == -torch.inf)
        penalty = self.length_penalty(self.length)
        if self.early_stopping == "never":
            if self.can_rise:
                return best_open == -torch.inf
            # log P only falls. Where the penalty grows with the length, the limit flatters an open hypothesis most.
            penalty = self.limit_penalties.clamp(min=penalty)
        return best_open / penalty <= worst


def best_sums(
    scores: torch.Tensor, log_probs: torch.Tensor, count: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The `count` greatest of the sums of `scores` (L, b) and `log_probs` (L, b, V) of each sentence, greatest first.

    PyTorch's `topk` partially sorts what it is given, so on a CPU it is given little: the words of a beam are folded
    into columns, and the `count` columns with the greatest maxima, which are cheap, hold the `count` greatest sums.
    Which of equal sums come first, or come at all, is as undefined as there.

    Returns:
        the sums, their beams and their words, each (L, count).
    """
    num_beams, vocab_size = log_probs.shape[1:]
    depth = vocab_size // NUM_COLUMNS
    if log_probs.device.type != "cpu" or log_probs.numel() < FEW_SUMS or depth < 8 or count > NUM_COLUMNS:
        # The best of a sentence are among the best of each of its beams.
        best, words = log_probs.topk(min(count, vocab_size))
        sums, choice = (scores[..., None] + best).flatten(1).topk(count)
        return sums, choice // best.shape[-1], words.flatten(1).gather(1, choice)
    width = vocab_size // depth
    folded = log_probs[..., : depth * width].unflatten(2, (depth, width))
    columns = (folded.amax(dim=2) + scores[..., None]).flatten(1).topk(count, sorted=False).indices  # (L, count)
    first = columns // width * vocab_size + columns % width
    inside = first[:, None] + torch.arange(0, depth * width, width, device=first.device)[:, None]  # (L, depth, count)
    starts = torch.arange(0, num_beams * vocab_size, vocab_size, device=first.device)
    behind = starts[:, None] + torch.arange(depth * width, vocab_size, device=first.device)  # (b, words not folded)
    places = torch.cat([inside.flatten(1), behind.flatten().expand(len(first), -1)], dim=1)
    sums = log_probs.flatten(1).gather(1, places) + scores.gather(1, places // vocab_size)
    sums, choice = sums.topk(count)
    places = places.gather(1, choice)
    return sums, places // vocab_size, places % vocab_size


def _pick(history: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Rows `index` (L, n) of `history` (2, L, b, T) -> (2, L, n, T)."""
    return history.gather(2, index[..., None].expand(2, -1, -1, history.shape[-1]))


def only_end(scores: torch.Tensor, must_end: torch.Tensor, last_tokens: torch.Tensor, is_forced: bool) -> torch.Tensor:
    """`scores` (rows, V) with -inf at all but the `last_tokens` (n,) in the rows that must end.

    They keep their own scores, unless all of them are forbidden; where they are forced their probability is 1.
    """
    if not len(last_tokens):
        return scores
    own = scores.index_select(1, last_tokens)
    ending = torch.full_like(scores, -torch.inf).index_copy_(
        1, last_tokens, torch.zeros_like(own) if is_forced else own
    )
    ends = must_end if is_forced else must_end & (own > -torch.inf).any(dim=-1)
    return torch.where(ends[:, None], ending, scores)
