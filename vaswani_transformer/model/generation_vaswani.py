"""`generate()` of transformers with the search of section 6.1 of the paper: options, limits, models, records.

Shapes: B sentences, b beams, S source tokens, T tokens so far, V vocab_size.
"""

import functools
from collections.abc import Sequence

import torch
from transformers import GenerationConfig, GenerationMixin
from transformers.cache_utils import DynamicCache, DynamicSlidingWindowLayer, EncoderDecoderCache
from transformers.generation import LogitsProcessorList, StoppingCriteriaList
from transformers.generation.utils import GenerateBeamEncoderDecoderOutput
from transformers.modeling_outputs import BaseModelOutput

from .cpu_vaswani import build_products
from .engine_vaswani import Engine, as_engines
from .ensemble_vaswani import check_ensemble
from .generation_options_vaswani import (
    OWN_OPTIONS,
    SourceLengthLimit,
    SourceLengthStop,
    build_generation_config,
    can_raise,
    check_mode,
    check_options,
    forget_default_length,
    further_criteria,
    further_processors,
)
from .masks_vaswani import build_padding_mask
from .plain_vaswani import find_obstacle
from .search_inputs_vaswani import (
    as_list,
    find_limits,
    find_prompt_length,
    mask_prompt,
    start_search,
    start_steps,
)
from .search_vaswani import Records, as_shortlist, run_search, spread

OWN_ARGUMENTS = ("ensemble", "shortlist", "engine")  # of `generate`, for the search alone
# What follows a single hypothesis, without an engine.
FOLLOW_ONE = ("do_sample", "streamer", "assistant_model", "prompt_lookup_num_tokens", "assistant_early_exit")


class VaswaniGenerationMixin(GenerationMixin):
    """`generate()` with the paper's beam search.

    Beam search and beam sampling run the search of this folder. With one beam, `_sample` of transformers does greedy
    search and sampling through `forward`; with `ensemble`, `shortlist` or `engine`, greedy search is the beam search
    with one beam.
    """

    @torch.no_grad()
    def generate(
        self,
        inputs: torch.Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        logits_processor: LogitsProcessorList | None = None,
        stopping_criteria: StoppingCriteriaList | None = None,
        *args,
        **kwargs,
    ):
        """As `transformers.GenerationMixin.generate`, with two generation options and three arguments more.

        `length_penalty` means the formula of `length_penalty_type` ("gnmt" by default). A sentence gets at most its
        source length + `max_length_offset` new tokens, as in section 6.1: a hypothesis that reaches this limit must
        end with </s>, at its true probability. A smaller `max_length` or `max_new_tokens` cuts as in transformers: a
        hypothesis that reaches it is finished as it stands, without </s>. Missing masks are derived from the padding,
        `attention_mask` and `decoder_attention_mask` (of a prompt in `decoder_input_ids`, to be padded on the left)
        alike. A beam search returns `past_key_values` only where it calls `forward` at each step (see
        `steps_vaswani`). What transformers would ignore is refused (see `generation_options_vaswani`).

        Args:
            ensemble: further models that translate together with this one, by the mean of their probabilities.
            shortlist: token ids, the only ones that may be generated besides </s>: equal to a search with the logits of
                all others at -inf. Logits processors, `scores` and `logits` see the whole vocabulary all the same.
            engine: of `build_engine`, made once and passed to every call; of an ensemble a list, this model's first.
                It translates with the weights of the moment it was made. Attention weights, hidden states, a cache of
                the caller's, of another kind or none, a padded prompt and more than 32 beams take `forward` instead;
                sampling with one beam, streaming, assistants and `custom_generate` do not use an engine. Without one,
                a call lays out one of its own.

        With `ensemble`, `shortlist` or `engine`, greedy search is our beam search with one beam, and has its kind of
        output; `logits` of an ensemble are the logarithms of the mean probabilities.

        Behind a processor that may raise a log P above 0 (a positive `sequence_bias`, one of your own) no bound holds,
        and a search with `early_stopping="never"` goes up to the limit; `renormalize_logits=True` restores the bound.

        `scores` of a beam search are what it added up, also where a sentence must end: there -inf at all words
        but </s>, and 0 at </s> where `forced_eos_token_id` forces it.

        Raises:
            ValueError: for options that cannot be honoured, and for what transformers itself refuses.
        """
        kwargs.pop("labels", None)  # a Seq2SeqTrainer hands them over with the source; no search reads them
        forget_default_length(self.generation_config)
        configs = [config for config in (generation_config, self.generation_config) if config is not None]

        def option(name: str):
            values = (kwargs.get(name), *(getattr(config, name, None) for config in configs))
            return next((value for value in values if value is not None), None)

        source_ids = inputs if inputs is not None else kwargs.get("input_ids")
        if kwargs.get("ensemble") is not None:
            check_ensemble(self, kwargs["ensemble"], kwargs)
        models = (self, *(kwargs.get("ensemble") or ()))
        engine = as_engines(kwargs.get("engine"), models)[0]
        if source_ids is not None and not len(source_ids):
            raise ValueError(f"there is no sentence to translate: input_ids has shape {tuple(source_ids.shape)}.")
        if kwargs.get("attention_mask") is None and source_ids is not None:
            kwargs["attention_mask"] = build_padding_mask(source_ids, self.config)
        start, forced = option("decoder_start_token_id"), option("forced_eos_token_id")
        mask_prompt(kwargs, start_token_id=start, pad_token_id=option("pad_token_id"))
        offset = kwargs["max_length_offset"] if "max_length_offset" in kwargs else option("max_length_offset")
        prompt_length = find_prompt_length(kwargs.get("decoder_input_ids"), start)
        limits = find_limits([model.config for model in models], kwargs, offset=offset, prompt_length=prompt_length)
        has_one_beam = option("num_beams") in (None, 1)
        follows_one = has_one_beam and any(option(name) for name in FOLLOW_ONE)
        if follows_one or kwargs.get("custom_generate") is not None:
            kwargs.pop("engine", None)
            engine = None
        is_ours = not has_one_beam or any(kwargs.get(name) is not None for name in OWN_ARGUMENTS)
        if limits is not None:
            if is_ours:
                kwargs["limits"] = limits
            if option("max_length") is None and option("max_new_tokens") is None:
                kwargs["max_new_tokens"] = max(1, int(limits.max()))
            if has_one_beam:
                limit = SourceLengthLimit(
                    limits,
                    prompt_length=prompt_length,
                    last_tokens=as_list(option("eos_token_id") if forced is None else forced),
                    is_forced=forced is not None,
                )
                logits_processor = LogitsProcessorList([*(logits_processor or []), limit])
                stop = SourceLengthStop(limits, prompt_length=prompt_length, pad_token_id=option("pad_token_id"))
                stopping_criteria = StoppingCriteriaList([*(stopping_criteria or []), stop])
        asks_more = any(option(name) for name in ("output_attentions", "output_hidden_states"))
        if engine is not None and source_ids is not None and not asks_more and kwargs.get("encoder_outputs") is None:
            encoding = engine.encode(source_ids, kwargs["attention_mask"])
            kwargs["encoder_outputs"] = BaseModelOutput(last_hidden_state=encoding)
        return super().generate(inputs, generation_config, logits_processor, stopping_criteria, *args, **kwargs)

    def build_engine(self, *, dtype: torch.dtype | str | None = None) -> Engine:
        """A snapshot of this model for `generate(..., engine=...)`, laid out for the device where the model is.

        Args:
            dtype: of the snapshot: "float32", "bfloat16", "float16", on a CPU also "int8"; by default that of the
                model.

        Raises:
            ValueError: where only `forward` computes what this model computes; the message says why.
        """
        if obstacle := find_obstacle(self):
            raise ValueError(
                f"an engine cannot be built of this model: {obstacle}. Without one, generate() calls its forward."
            )
        return Engine(self, build_products(dtype or self.dtype, self.device))

    def engine_obstacle(self) -> str | None:
        """Why `build_engine` refuses this model, in words; `None` if it does not."""
        return find_obstacle(self)

    def save_pretrained(self, *args, **kwargs) -> None:
        """As every model's, and without the length that a Seq2SeqTrainer has written into the generation config."""
        forget_default_length(self.generation_config)
        super().save_pretrained(*args, **kwargs)

    def _get_stopping_criteria(self, generation_config, stopping_criteria=None, *args, **kwargs):
        """As transformers', and which of them the caller gave."""
        criteria = super()._get_stopping_criteria(generation_config, stopping_criteria, *args, **kwargs)
        criteria.given = tuple(stopping_criteria or ())
        return criteria

    def _get_logits_processor(self, *args, logits_processor=None, **kwargs):
        """As transformers', and which of them the caller gave."""
        processors = super()._get_logits_processor(*args, logits_processor=logits_processor, **kwargs)
        processors.given = tuple(logits_processor or ())
        return processors

    def _prepare_generation_config(self, generation_config: GenerationConfig | None, **kwargs):
        """All options of a call; ours too where the configs have never heard of them."""
        config, model_kwargs = super()._prepare_generation_config(generation_config, **kwargs)
        for name, default in OWN_OPTIONS.items():
            if not hasattr(config, name) or name in model_kwargs:
                setattr(config, name, model_kwargs.pop(name, default))
        check_options(config)
        return config, model_kwargs

    def _prepare_cache_for_generation(self, generation_config: GenerationConfig, model_kwargs: dict, *args) -> None:
        """As transformers; with restricted self-attention (table 1) the cache keeps no more than the window."""
        given, r = model_kwargs.get("past_key_values"), self.config.attention_window
        asked = (generation_config.cache_implementation, generation_config.use_cache is False)
        if given is None and r is None and asked == (None, False) and not generation_config.is_assistant:
            # What transformers makes, without two copies of the config, which take as long as a step of a search. An
            # engine leaves it empty.
            model_kwargs["past_key_values"] = EncoderDecoderCache(DynamicCache(), DynamicCache())
            return
        super()._prepare_cache_for_generation(generation_config, model_kwargs, *args)
        cache = model_kwargs.get("past_key_values")
        if r is None or given is not None or cache is None:
            return
        target_cache = cache.self_attention_cache
        if type(target_cache) is DynamicCache and not target_cache.offloading:
            # Not by a sliding window in the config: it would hold for the keys of the source too. And with a window
            # of 1 transformers' layer keeps all keys (5.23).
            target_cache.layers = [DynamicSlidingWindowLayer(max(r, 2)) for _ in target_cache.layers]
            if generation_config.is_assistant:  # its guesses are taken back
                target_cache.activate_past_recording()

    def _extract_generation_mode_kwargs(self, custom_generate, kwargs: dict, *args) -> dict:
        """Arguments for the search itself, `ensemble`, `shortlist` and `engine` among them."""
        arguments = {name: kwargs.pop(name, None) for name in (*OWN_ARGUMENTS, "limits")}
        arguments = {name: value for name, value in arguments.items() if value is not None}
        if custom_generate is not None:
            arguments.pop("limits", None)
            if arguments:
                raise ValueError(f"{' and '.join(arguments)} cannot be used with custom_generate.")
        return super()._extract_generation_mode_kwargs(custom_generate, kwargs, *args) | arguments

    def _validate_generation_mode(self, generation_mode, generation_config: GenerationConfig, mode_kwargs: dict):
        check_mode(generation_mode, generation_config, mode_kwargs)
        super()._validate_generation_mode(generation_mode, generation_config, mode_kwargs)

    def adjust_generation_fn(self, *args, **kwargs):
        """Called at the end of loading: without a `generation_config.json` the search is that of section 6.1."""
        super().adjust_generation_fn(*args, **kwargs)
        if getattr(self.generation_config, "_from_model_config", None):
            self.generation_config = build_generation_config(self.config)

    def _sample(self, *args, inputs_tensor: torch.Tensor | None = None, **kwargs):
        """Greedy search and sampling of transformers; what these cannot do becomes our beam search with one beam."""
        if not any(name in kwargs for name in OWN_ARGUMENTS):
            return super()._sample(*args, **kwargs)
        kwargs["generation_config"].early_stopping = True  # the first </s> that wins ends a greedy search
        return self._beam_search(*args, inputs_tensor=inputs_tensor, **kwargs)

    def _beam_search(
        self,
        input_ids: torch.LongTensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        synced_gpus: bool = False,
        inputs_tensor: torch.Tensor | None = None,
        ensemble: Sequence["VaswaniGenerationMixin"] = (),
        shortlist: Sequence[int] | torch.Tensor | None = None,
        engine: Engine | Sequence[Engine] | None = None,
        limits: torch.Tensor | None = None,
        tokenizer: object = None,
        **model_kwargs,
    ) -> GenerateBeamEncoderDecoderOutput | torch.LongTensor:
        """The search of section 6.1; called by `generate` with everything prepared.

        Not through `custom_generate`, which is public: with a callable there transformers (5.23) drops `tokenizer`,
        which `stop_strings` needs, and `synced_gpus`.

        Args:
            inputs_tensor: (B, S) source tokens; read by the further models of an ensemble.
            limits: (B,) new tokens of each sentence by section 6.1, found by `generate`.
            tokenizer: read before, by the criterion of `stop_strings`.
        """
        records = Records(generation_config)
        if ensemble and records.wants_states:
            raise ValueError("output_attentions and output_hidden_states are of one model: leave out the ensemble.")
        ends = as_list(generation_config.eos_token_id)
        criteria = further_criteria(stopping_criteria)
        processors = further_processors(logits_processor)
        # Scores of words that are not on a shortlist are for processors and records alone.
        words = None
        widen = lambda log_probs: log_probs  # noqa: E731
        if shortlist is not None:
            words = as_shortlist(shortlist, ends, self.config.vocab_size, input_ids.device)
            if processors or records.steps:
                widen = functools.partial(spread, shortlist=words, vocab_size=self.config.vocab_size)
        search = start_search(
            input_ids,
            generation_config,
            limits,
            shortlist=None if processors or records.steps else words,
            can_rise=can_raise(processors),
        )
        models = (self, *ensemble)
        members = start_steps(
            models,
            as_engines(engine, models),
            inputs_tensor,
            generation_config,
            model_kwargs,
            shortlist=words,
            calls_forward=synced_gpus or records.wants_states,
        )
        cache = members[0].cache
        is_cache_read = cache is not None and (records.as_dict or getattr(cache, "_is_user_defined", False))
        run_search(
            search,
            members,
            records,
            processors=processors,
            criteria=criteria,
            # A rule or a record may count on the places of rows in the batch, and so may a reader of the cache.
            may_leave=not (synced_gpus or records.steps or criteria or processors or is_cache_read),
            widen=widen,
            goes_on=lambda all_done: self._has_unfinished_sequences(all_done, synced_gpus, device=input_ids.device),
        )
        return records.result(search, model_kwargs["encoder_outputs"], cache)
