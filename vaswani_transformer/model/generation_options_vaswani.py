"""What of transformers' generation options a Vaswani model refuses.

Nothing is ignored: an option is honoured, or handed to transformers, or refused here with what to do instead. A test
names every field of `GenerationConfig`, so that a new one in a later version is noticed.
"""

import torch
from transformers import GenerationConfig
from transformers.generation import GenerationMode, SynthIDTextWatermarkingConfig

from .beam_search_vaswani import LENGTH_PENALTIES

OFF = {"guidance_scale": 1, "num_beam_groups": 1}  # values that mean "no", besides None, False and 0

# Refused in every mode.
NOT_SUPPORTED = {
    "cache_config": "it configures quantized caches, which transformers has for decoder-only models alone",
    "constraints": "transformers has given up constrained beam search; use prefix_allowed_tokens_fn",
    "continuous_batching_config": "continuous batching is for decoder-only models",
    "diversity_penalty": "transformers has given up groups of beams; use do_sample or num_return_sequences",
    "force_words_ids": "transformers has given up constrained beam search; use prefix_allowed_tokens_fn",
    "guidance_scale": "classifier-free guidance is for decoder-only models",
    "low_memory": "transformers has given it up; use a smaller batch",
    "num_beam_groups": "transformers has given up groups of beams; use do_sample or num_return_sequences",
    "prefill_chunk_size": "transformers would cut the mask of the source by the chunks of the target",
    "token_healing": "it mends prompts of decoder-only models",
    "use_mtp": "the model predicts one token at a time",
}
# Refused in beam search; in greedy search and sampling they are transformers'.
WITHOUT_BEAMS = (
    "assistant_early_exit",
    "assistant_ensemble_weight",
    "dola_layers",
    "is_assistant",
    "max_matching_ngram_size",
    "penalty_alpha",
    "prompt_lookup_num_tokens",
    "speculation_type",
)
# The same, with defaults that transformers fills in.
WITHOUT_BEAMS_BUT_FOR_DEFAULTS = (
    "assistant_confidence_threshold",
    "assistant_lookbehind",
    "num_assistant_tokens",
    "num_assistant_tokens_schedule",
    "target_lookbehind",
)


def check_options(config: GenerationConfig) -> None:
    """Refuse what neither our search nor transformers would honour.

    Args:
        config: all options of the call, with the defaults filled in.

    Raises:
        ValueError: naming the option, its value, and what to do instead.
    """
    for name, reason in NOT_SUPPORTED.items():
        if _is_on(config, name):
            raise ValueError(f"{name}={getattr(config, name)!r} is not supported: {reason}.")
    if config.cache_implementation == "paged":
        raise ValueError('cache_implementation="paged" is not supported: it is for decoder-only models.')
    if not getattr(config, "coverage_penalty", 0) >= 0:
        raise ValueError(
            f"coverage_penalty is the weight of a penalty and must be at least 0, got {config.coverage_penalty}."
        )
    if config.length_penalty_type not in LENGTH_PENALTIES:
        raise ValueError(
            f"length_penalty_type must be one of {tuple(LENGTH_PENALTIES)}, got {config.length_penalty_type!r}."
        )
    _check_forced_end(config)
    if isinstance(config.num_beams, bool) or config.num_beams < 1:
        raise ValueError(f"num_beams must be at least 1, which is greedy search; got {config.num_beams!r}.")
    if config.num_beams == 1:
        return
    defaults = GenerationConfig._get_default_generation_params()
    for name in (*WITHOUT_BEAMS, *WITHOUT_BEAMS_BUT_FOR_DEFAULTS):
        if _is_on(config, name) and getattr(config, name) != defaults.get(name):
            raise ValueError(
                f"{name}={getattr(config, name)!r} has no meaning in beam search; pass num_beams=1, or leave it out."
            )
    if isinstance(config.watermarking_config, SynthIDTextWatermarkingConfig):
        raise ValueError(
            "a SynthID watermark follows one hypothesis and cannot change places with the beams; pass num_beams=1."
        )


def check_mode(mode: GenerationMode, config: GenerationConfig, mode_arguments: dict) -> None:
    """Refuse arguments of `generate` that the mode has no use for.

    Args:
        mode_arguments: streamer, assistant_model, ensemble, ... as far as they were given.

    Raises:
        ValueError: naming the argument and what to do instead.
    """
    if config.num_beams > 1:
        for name in ("streamer", "assistant_model"):
            if name in mode_arguments:
                raise ValueError(f"{name} follows one hypothesis and is not for beam search: pass num_beams=1.")
    for name in sorted({"ensemble", "shortlist"} & mode_arguments.keys()):
        if "streamer" in mode_arguments:
            raise ValueError(f"{name} and streamer cannot be used together.")
        if mode not in (GenerationMode.BEAM_SEARCH, GenerationMode.BEAM_SAMPLE, GenerationMode.GREEDY_SEARCH):
            raise ValueError(f"{name} is for beam search and greedy search, not for {mode.value}.")


def _is_on(config: GenerationConfig, name: str) -> bool:
    value = getattr(config, name, None)
    return not (value is None or value is False or value in (0, OFF.get(name)))


def _check_forced_end(config: GenerationConfig) -> None:
    forced, ends = (
        torch.tensor([] if token_ids is None else token_ids).flatten().tolist()
        for token_ids in (config.forced_eos_token_id, config.eos_token_id)
    )
    if not set(forced) <= set(ends):
        raise ValueError(
            f"forced_eos_token_id={config.forced_eos_token_id} must be among eos_token_id={config.eos_token_id}: "
            f"a translation at its limit ends, and others in the batch go on."
        )
