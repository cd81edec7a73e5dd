"""A shortlist: the only words that translations may have, of which alone logits are computed."""

from collections.abc import Sequence

import torch

from ..engine.engine import Engine
from ..model.generation_vaswani import as_list
from ..model.search_vaswani import Steps
from .ensemble import Ensemble


class Shortlisted:
    """Decodes in place of `engine`: `generate(..., engine=Shortlisted(engine, token_ids))`.

    Args:
        engine: of one model, or of several.
        token_ids: the only ones that may be generated besides </s>.

    Raises:
        ValueError: for ids that are not in the vocabulary, or for none.
    """

    def __init__(self, engine: Engine | Ensemble, token_ids: Sequence[int]):
        first = engine.members[0] if isinstance(engine, Ensemble) else engine
        vocab_size = first.config.vocab_size
        if not token_ids or not all(0 <= token_id < vocab_size for token_id in token_ids):
            raise ValueError(f"a shortlist must hold token ids from 0 to {vocab_size - 1}, at least one.")
        self.engine, self.encode = engine, engine.encode
        ids = {*token_ids, *as_list(first.generation_config.eos_token_id)}
        self.token_ids = torch.tensor(sorted(ids), device=first.device)

    def start(self, encoding: torch.Tensor, source_mask: torch.Tensor | None, *, num_beams: int) -> Steps:
        """Return the steps of a search; for the arguments see `Engine.start`."""
        return self.engine.start(encoding, source_mask, num_beams=num_beams, shortlist=self.token_ids)
