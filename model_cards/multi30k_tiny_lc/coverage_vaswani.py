"""Coverage of the source (Wu et al. 2016, equation 14): a penalty on source words that nothing was translated from.

    cp(X, Y) = sum_i log(min(sum_j p_ij, 1))

p_ij is the attention that the j-th word of Y pays to the i-th of X while it is predicted. GNMT has one attention; here
it is the mean over the heads of the last decoder layer's encoder-decoder attention, the one nearest to the words.
Source words are counted with </s> and without padding, target words with </s> and with those of a prompt
(`decoder_input_ids`), which translate something too.

cp is never positive, and of a hypothesis that goes on it can only rise, at most to 0.

Shapes: B sentences, L sentences still in the search, b beams, H heads, S source tokens, T target tokens.
"""

import torch

from .configuration_vaswani import WEIGHT_KERNELS

LEAST_COVERAGE = torch.finfo(torch.float32).tiny  # a word without attention costs 87 nats, not infinitely many


def check_kernel(kernel: str) -> None:
    """Refuse an `attn_implementation` that has no attention weights to count.

    Raises:
        ValueError: naming the kernel and one that has them.
    """
    if kernel not in WEIGHT_KERNELS:
        raise ValueError(
            f"coverage_penalty counts attention weights, and attn_implementation={kernel!r} cannot give them: use "
            f'model.set_attn_implementation("sdpa").'
        )


def compute_coverage(cross_attentions: tuple[torch.Tensor, ...], target_mask: torch.Tensor | None) -> torch.Tensor:
    """sum_j p_ij, (rows, S), from the attention of every decoder layer, (rows, H, T, S) each.

    Args:
        target_mask: (rows, T), 0 at padding; `None` where nothing is padded.
    """
    weights = cross_attentions[-1]
    weights = weights.to(torch.promote_types(weights.dtype, torch.float32)).mean(dim=1)
    if target_mask is not None:
        weights = weights * target_mask[..., None]
    return weights.sum(dim=1)


def coverage_penalty(coverage: torch.Tensor, source_mask: torch.Tensor) -> torch.Tensor:
    """cp(X, Y) (...) of `coverage` (..., S); `source_mask`, broadcastable to it, is True at the words of the source."""
    logs = coverage.clamp(min=LEAST_COVERAGE, max=1.0).log()
    return logs.masked_fill(~source_mask, 0.0).sum(dim=-1)


class BeamCoverage:
    """Coverage by each hypothesis of a search.

    Args:
        source_mask: (B, S), True at the words of the source.
        num_beams: b.
        beta: weight of the penalty in the score.
        prompt_mask: (B * b, P), 0 at the padding of the prompt, if there is any.
    """

    def __init__(
        self, source_mask: torch.Tensor, *, num_beams: int, beta: float, prompt_mask: torch.Tensor | None = None
    ):
        self.source_mask = source_mask[:, None]  # (L, 1, S)
        self.beta = beta
        self.prompt_mask = prompt_mask
        self.coverage = torch.zeros(len(source_mask), num_beams, source_mask.shape[1], device=source_mask.device)
        self.has_begun = False

    def add(self, attentions_of_models: list[tuple[torch.Tensor, ...]]) -> torch.Tensor:
        """Count the attention of a step, as the mean over the models; beta * cp (L, b) with this step's word."""
        if self.has_begun:  # without a cache a step computes the earlier words once more
            attentions_of_models = [(attentions[-1][:, :, -1:],) for attentions in attentions_of_models]
        mask = None if self.has_begun else self.prompt_mask
        self.has_begun = True
        added = torch.stack([compute_coverage(attentions, mask) for attentions in attentions_of_models]).mean(dim=0)
        self.coverage += added.view(self.coverage.shape)  # in the float32 of a search, also of a model in float64
        return self.beta * coverage_penalty(self.coverage, self.source_mask)

    def follow(self, beams: torch.Tensor, staying: torch.Tensor | None) -> None:
        """Go on from the beams (L, b) of the sentences `staying`, or of all."""
        self.coverage = self.coverage.gather(1, beams[..., None].expand_as(self.coverage))
        if staying is not None:
            self.coverage, self.source_mask = self.coverage[staying], self.source_mask[staying]
