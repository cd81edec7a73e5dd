"""Ensembles: several models of one vocabulary translate together, by the mean of their probabilities.

    P(y | Y, X) = 1/M sum_m P_m(y | Y, X)

Each model reads the source with its own encoder and has its own cache, so they may differ in size, precision and
everything else but the vocabulary.
"""

import torch
from transformers.generation import GenerationMode
from transformers.modeling_outputs import BaseModelOutput

OWN_INPUTS = ("encoder_outputs", "inputs_embeds", "past_key_values", "decoder_inputs_embeds")


def check_ensemble(model, ensemble, kwargs: dict) -> None:
    """Refuse what cannot translate together with `model`.

    Args:
        ensemble: what `generate` was given.
        kwargs: its other arguments.

    Raises:
        ValueError: for another vocabulary, or for inputs that belong to one model alone.
    """
    for member in ensemble:
        for name in ("vocab_size", "eos_token_id", "pad_token_id", "decoder_start_token_id"):
            theirs, ours = getattr(member.config, name), getattr(model.config, name)
            if theirs != ours:
                raise ValueError(
                    f"models of an ensemble must share one vocabulary: {name} is {ours} in the first model and "
                    f"{theirs} in another. Train them on data prepared with the same tokenizer."
                )
    given = [name for name in OWN_INPUTS if kwargs.get(name) is not None]
    if given:
        raise ValueError(f"an ensemble reads input_ids, each model by itself; got {', '.join(given)} of one model.")


def prepare_member(member, engine, source_ids: torch.LongTensor, generation_config, model_kwargs: dict) -> dict:
    """What `generate` would prepare for the steps of `member`, from what it prepared for the first model.

    Args:
        engine: of `member`, which then encodes; `None` for its own encoder.
    """
    mask = model_kwargs.get("attention_mask")
    if mask is not None:
        mask = mask[:: len(mask) // len(source_ids)]
    if engine is None:
        encoded = member.get_encoder()(source_ids, attention_mask=mask)
    else:
        encoded = BaseModelOutput(last_hidden_state=engine.encode(source_ids, mask))
    _, prepared = member._expand_inputs_for_generation(
        expand_size=generation_config.num_beams, is_encoder_decoder=True, encoder_outputs=encoded, attention_mask=mask
    )
    # The first belongs to the prompt they share.
    given = ("decoder_attention_mask", "use_cache", "logits_to_keep")
    prepared.update({name: model_kwargs[name] for name in given if model_kwargs.get(name) is not None})
    member._prepare_cache_for_generation(
        generation_config, prepared, GenerationMode.BEAM_SEARCH, len(source_ids), generation_config.max_length - 1
    )
    return prepared


def mean_log_probs(log_probs_of_models: list[torch.Tensor]) -> torch.Tensor:
    """log of the mean of probabilities, from the logarithms; exact where all are equal, unlike a logsumexp."""
    if len(log_probs_of_models) == 1:
        return log_probs_of_models[0]
    log_probs = torch.stack(log_probs_of_models)
    highest = log_probs.amax(dim=0).clamp(min=torch.finfo(log_probs.dtype).min)
    return highest + (log_probs - highest).exp_().mean(dim=0).log_()
