"""What `generate()` was given, as the search of section 6.1 reads it: prompt, limits, hypotheses, steps.

Shapes: B sentences, b beams, S source tokens, P tokens of a prompt.
"""

from collections.abc import Sequence

import torch
from transformers import GenerationConfig

from .beam_search_vaswani import LENGTH_PENALTIES, BeamSearch
from .configuration_vaswani import VaswaniConfig
from .cpu_vaswani import Products, build_products
from .engine_vaswani import Engine
from .ensemble_vaswani import prepare_member
from .plain_vaswani import find_obstacle
from .steps_vaswani import ForwardSteps, Steps, suits_engine

MANY_SENTENCES = 8  # in a call; with fewer, packing matrices for it takes longer than it saves


def mask_prompt(kwargs: dict, *, start_token_id: int | list[int] | torch.Tensor, pad_token_id: int | None) -> None:
    """Derive the missing mask of a padded prompt in `kwargs`, and refuse padding where the new words begin."""
    prompt, mask = kwargs.get("decoder_input_ids"), kwargs.get("decoder_attention_mask")
    if prompt is None:
        return
    starts_with_padding = pad_token_id in as_list(start_token_id)  # then padding cannot be told from a start
    if mask is None and pad_token_id is not None and not starts_with_padding and (prompt == pad_token_id).any():
        kwargs["decoder_attention_mask"] = mask = (prompt != pad_token_id).long()
    if mask is not None and not mask[:, -1].all():
        raise ValueError(
            "decoder_input_ids of different lengths must be padded on the left: new words follow the last token of "
            "each row, which is padding in some."
        )


def find_prompt_length(prompt: torch.Tensor | None, start_token_id: int | list[int] | torch.Tensor) -> int:
    """Tokens in front of the new ones: transformers adds the start token where no row of `prompt` begins with it."""
    if prompt is None:
        return 1
    start = torch.as_tensor(start_token_id, device=prompt.device)
    return prompt.shape[1] + int((prompt[:, 0] != start).all())


def find_limits(
    configs: Sequence[VaswaniConfig], kwargs: dict, *, offset: int | None, prompt_length: int
) -> torch.Tensor | None:
    """(B,) new tokens each sentence may get: its source length + `offset` (section 6.1), and no more than a learned
    table of one of the models has positions.

    `None` where the length of the source or the offset is not known.
    """
    mask, states = kwargs.get("attention_mask"), kwargs.get("inputs_embeds")
    if states is None and kwargs.get("encoder_outputs") is not None:
        states = kwargs["encoder_outputs"][0]
    if offset is None or (mask is None and states is None):
        return None
    if mask is not None:
        limits = mask.long().sum(dim=-1) + offset
    else:
        limits = torch.full((states.shape[0],), states.shape[1] + offset, device=states.device)
    for config in configs:
        if config.position_embedding_type == "learned":  # the last token is never read, and needs no position
            limits = limits.clamp(max=config.max_position_embeddings - prompt_length + 1)
    return limits


def start_search(
    input_ids: torch.LongTensor,
    config: GenerationConfig,
    source_limits: torch.Tensor | None,
    *,
    shortlist: torch.LongTensor | None,
    can_rise: bool,
) -> BeamSearch:
    """The hypotheses of a search from the prompt `input_ids` (B * b, P).

    Args:
        source_limits: (B,) new tokens by section 6.1, as `find_limits` gives them.
        shortlist, can_rise: see `BeamSearch`.
    """
    most, forced = config.max_length - input_ids.shape[1], as_list(config.forced_eos_token_id)
    limits = torch.full((input_ids.shape[0] // config.num_beams,), most, device=input_ids.device)
    must_end = torch.full_like(limits, bool(forced), dtype=torch.bool)
    if source_limits is not None:
        source_limits = source_limits.to(limits.device)
        limits, must_end = torch.minimum(limits, source_limits), must_end | (source_limits <= most)
    is_exact = config.early_stopping == "never"
    length_penalty = LENGTH_PENALTIES[config.length_penalty_type]
    return BeamSearch(
        input_ids,
        num_beams=config.num_beams,
        # Under the exact bound, hypotheses that are not asked for cannot change those that are.
        num_kept=config.num_return_sequences if is_exact else config.num_beams,
        limits=limits,
        must_end=must_end,
        length_penalty=lambda length: length_penalty(length, config.length_penalty),
        early_stopping=config.early_stopping,
        eos_token_ids=as_list(config.eos_token_id),
        pad_token_id=-1 if config.pad_token_id is None else config.pad_token_id,
        forced_token_ids=forced,
        shortlist=shortlist,
        can_rise=can_rise,
        do_sample=config.do_sample,
    )


def start_steps(
    models: Sequence,
    engines: Sequence[Engine | None],
    source_ids: torch.LongTensor,
    config: GenerationConfig,
    model_kwargs: dict,
    *,
    shortlist: torch.LongTensor | None,
    calls_forward: bool,
) -> list[Steps]:
    """How each of `models` takes its steps: through an engine, or through `forward` where it must.

    Args:
        engines: of each model, as far as the caller of `generate` gave them.
        source_ids: (B, S), read by all models but the first.
        model_kwargs: what `generate` prepared for the first model.
        shortlist: (n,) token ids that logits are asked of; `None` for all.
        calls_forward: only `forward` will do.
    """
    inputs_of_models = [model_kwargs]
    for member, engine in zip(models[1:], engines[1:], strict=True):
        inputs_of_models.append(prepare_member(member, engine, source_ids, config, model_kwargs))
    num_beams, steps = config.num_beams, []
    for model, inputs, engine in zip(models, inputs_of_models, engines, strict=True):
        encoded, mask = inputs["encoder_outputs"], inputs.get("attention_mask")
        if calls_forward or not suits_engine(config, inputs) or (engine is None and find_obstacle(model)):
            if engine is not None:  # it has encoded in its own dtype
                encoded.last_hidden_state = encoded.last_hidden_state.to(model.dtype)
            steps.append(ForwardSteps(model, config, inputs, shortlist=shortlist))
            continue
        states, mask = encoded.last_hidden_state[::num_beams], None if mask is None else mask[::num_beams]
        if engine is None:
            is_small = len(states) < MANY_SENTENCES
            products = Products(model.dtype, copies=False) if is_small else build_products(model.dtype, model.device)
            engine = Engine(model, products, encodes=False)
        steps.append(engine.start(states, mask, num_beams=num_beams, shortlist=shortlist))
    return steps


def as_list(token_ids: int | list[int] | torch.Tensor | None) -> list[int]:
    """One token id, several or none, as a list."""
    if token_ids is None:
        return []
    if isinstance(token_ids, torch.Tensor):
        return token_ids.flatten().tolist()
    return list(token_ids) if isinstance(token_ids, (list, tuple)) else [token_ids]
