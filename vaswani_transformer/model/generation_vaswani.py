"""`generate()` of transformers with the search of section 6.1 of the paper: options, limits, models, records.

Shapes: B sentences, b beams, S source tokens, T tokens so far, V vocab_size.
"""

from collections.abc import Callable, Sequence

import torch
from transformers import GenerationConfig, GenerationMixin
from transformers.cache_utils import Cache, DynamicCache, DynamicSlidingWindowLayer, EncoderDecoderCache
from transformers.generation import LogitsProcessorList, StoppingCriteriaList
from transformers.generation.utils import GenerateBeamEncoderDecoderOutput

from .beam_search_vaswani import LENGTH_PENALTIES, BeamSearch
from .configuration_vaswani import VaswaniConfig
from .coverage_vaswani import BeamCoverage, check_kernel
from .ensemble_vaswani import check_ensemble, mean_log_probs, prepare_member
from .generation_options_vaswani import check_mode, check_options
from .layers_vaswani import build_padding_mask
from .search_rules_vaswani import (
    SourceLengthLimit,
    SourceLengthStop,
    can_raise,
    further_criteria,
    further_processors,
    is_row_wise,
    split_min_length,
)
from .steps_vaswani import SHARED_ENCODING_KERNELS, BeamSteps, ForwardSteps

# Generation options that transformers does not know, with what they are where nobody says.
OWN_OPTIONS = {"length_penalty_type": "gnmt", "max_length_offset": None, "coverage_penalty": 0.0}


def build_generation_config(config: VaswaniConfig) -> GenerationConfig:
    """Decoding as in section 6.1: beam 4, alpha 0.6, source length + 50 tokens.

    Three keys are ours: `length_penalty_type` ("gnmt" or "power"), `max_length_offset` (tokens a translation may be
    longer than its source, `None` for no such limit) and `coverage_penalty` (beta, >= 0; GNMT's best was 0.2).
    """
    return GenerationConfig(
        num_beams=4,
        length_penalty=0.6,
        length_penalty_type="gnmt",
        max_length_offset=50,
        coverage_penalty=0.0,
        early_stopping="never",  # the bound of section 6.1 is exact; transformers' default is a guess
        bos_token_id=config.bos_token_id,
        pad_token_id=config.pad_token_id,
        eos_token_id=config.eos_token_id,
        decoder_start_token_id=config.decoder_start_token_id,
    )


def forget_default_length(config: GenerationConfig) -> None:
    """Take back a `max_length` that nobody has set.

    With `predict_with_generate`, transformers' Seq2SeqTrainer fills the model's config with the defaults of all options
    (5.23), a `max_length` of 20 among them: from the second evaluation on, translations would end there. Any other
    length stays, and one of 20 without all the other defaults.
    """
    defaults = {name: value for name, value in config._get_default_generation_params().items() if value is not None}
    is_filled = all(getattr(config, name, None) is not None for name in defaults)
    if is_filled and config.max_length == defaults["max_length"]:
        config.max_length = None


class VaswaniGenerationMixin(GenerationMixin):
    """`generate()` with the paper's beam search. Greedy search and sampling stay transformers'."""

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
        """As `transformers.GenerationMixin.generate`, with three generation options and two arguments more.

        `length_penalty` means the formula of `length_penalty_type` ("gnmt" by default), and `coverage_penalty` is the
        weight of GNMT's penalty on source words left out. A sentence gets at most its source length +
        `max_length_offset` new tokens, as in section 6.1: a hypothesis that reaches this limit must end with </s>, at
        its true probability. A smaller `max_length` or `max_new_tokens` cuts as in transformers: a hypothesis that
        reaches it is finished as it stands, without </s>. Missing masks are derived from
        the padding, `attention_mask` and `decoder_attention_mask` (of a prompt in `decoder_input_ids`, to be padded
        on the left) alike. A beam search returns `past_key_values` only where it calls `forward` at each step (see
        `steps_vaswani`). What transformers would ignore is refused (see `generation_options_vaswani`).

        Args:
            ensemble: further models that translate together with this one, by the mean of their probabilities.
            shortlist: token ids, the only ones that may be generated besides </s>. The product with the vocabulary is
                made for them alone, and probabilities are over them: equal to a search with the logits of all others
                at -inf. Logits processors, `scores` and `logits` see the whole vocabulary all the same.

        With `ensemble` or `shortlist`, greedy search is our beam search with one beam, and has its kind of output;
        `logits` of an ensemble are the logarithms of the mean probabilities.

        Behind a processor that may raise a log P above 0 (a positive `sequence_bias`, one of your own) no bound holds,
        and a search with `early_stopping="never"` goes up to the limit; `renormalize_logits=True` restores the bound.

        `scores` of a beam search are what it added up, also where a sentence must end: there -inf at all words
        but </s>, and 0 at </s> where `forced_eos_token_id` forces it. Without a `coverage_penalty`, what
        `compute_transition_scores` makes of them sums to `sequences_scores` times the length penalty.

        On a CPU a beam search keeps copies of the decoder's matrices in the order that oneDNN reads, of their size: as
        long as the model lives, or until `train()`. Matrices that change are copied anew at the next search. oneDNN
        also keeps kernels, one for each shape of a product, of a small model up to 0.8 GB. The command `vaswani` has it
        keep fewer, 0.3 GB, and has glibc keep what each step frees, which saves a tenth of the time of large batches.
        To have the same, call `keep_few_kernels` and `keep_freed_memory` of `vaswani_transformer.memory` at the start.

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
        _check_source(source_ids, kwargs, option)
        if kwargs.get("attention_mask") is None and source_ids is not None:
            kwargs["attention_mask"] = build_padding_mask(source_ids, self.config)
        start, end, forced = (
            option(name) for name in ("decoder_start_token_id", "eos_token_id", "forced_eos_token_id")
        )
        _mask_prompt(kwargs, start_token_id=start, pad_token_id=option("pad_token_id"))
        offset = kwargs["max_length_offset"] if "max_length_offset" in kwargs else option("max_length_offset")
        prompt_length = _prompt_length(kwargs.get("decoder_input_ids"), start)
        limits = self._limit_sentences(kwargs, offset, prompt_length)
        if limits is not None:
            if option("max_length") is None and option("max_new_tokens") is None:
                kwargs["max_new_tokens"] = int(limits.max())
            if option("num_beams") in (None, 1):
                limit = SourceLengthLimit(
                    limits,
                    prompt_length=prompt_length,
                    last_tokens=_as_list(end if forced is None else forced),
                    is_forced=forced is not None,
                )
                logits_processor = LogitsProcessorList([*(logits_processor or []), limit])
                stop = SourceLengthStop(limits, prompt_length=prompt_length, pad_token_id=option("pad_token_id"))
                stopping_criteria = StoppingCriteriaList([*(stopping_criteria or []), stop])
        output = super().generate(inputs, generation_config, logits_processor, stopping_criteria, *args, **kwargs)
        _copy_source_keys(getattr(output, "past_key_values", None))
        return output

    def save_pretrained(self, *args, **kwargs) -> None:
        """As every model's, and without the length that a Seq2SeqTrainer has written into the generation config."""
        forget_default_length(self.generation_config)
        super().save_pretrained(*args, **kwargs)

    def _limit_sentences(self, kwargs: dict, offset: int | None, prompt_length: int) -> torch.Tensor | None:
        """(rows,) new tokens each sentence may get, or `None` where nothing says: neither its source nor a table."""
        limits = _source_limits(kwargs, offset)
        if limits is not None and self.config.position_embedding_type == "learned":
            # The last token is never read, and needs no position.
            limits = limits.clamp(max=self.config.max_position_embeddings - prompt_length + 1)
        return limits

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
            # What transformers makes, without the two copies of the config that take it as long as a step of search.
            model_kwargs["past_key_values"] = EncoderDecoderCache(DynamicCache(), DynamicCache())
            return
        super()._prepare_cache_for_generation(generation_config, model_kwargs, *args)
        cache = model_kwargs.get("past_key_values")
        if r is None or given is not None or cache is None:
            return
        own = cache.self_attention_cache
        if type(own) is DynamicCache and not own.offloading:
            # Not by a sliding window in the config: it would hold for the keys of the source too. And with a window
            # of 1 transformers' layer keeps all keys (5.23).
            own.layers = [DynamicSlidingWindowLayer(max(r, 2)) for _ in own.layers]
            if generation_config.is_assistant:  # its guesses are taken back
                own.activate_past_recording()

    def _extract_generation_mode_kwargs(self, custom_generate, kwargs: dict, *args) -> dict:
        """Arguments for the search itself, `ensemble` and `shortlist` among them."""
        own = {name: kwargs.pop(name, None) for name in ("ensemble", "shortlist")}
        own = {name: value for name, value in own.items() if value is not None}
        if own and custom_generate is not None:
            raise ValueError(f"{' and '.join(own)} cannot be used with custom_generate.")
        return super()._extract_generation_mode_kwargs(custom_generate, kwargs, *args) | own

    def _validate_generation_mode(self, generation_mode, generation_config: GenerationConfig, mode_kwargs: dict):
        check_mode(generation_mode, generation_config, mode_kwargs)
        super()._validate_generation_mode(generation_mode, generation_config, mode_kwargs)

    def adjust_generation_fn(self, *args, **kwargs):
        """Called at the end of loading: without a `generation_config.json` the search is that of section 6.1."""
        super().adjust_generation_fn(*args, **kwargs)
        if getattr(self.generation_config, "_from_model_config", None):
            self.generation_config = build_generation_config(self.config)

    def _expand_inputs_for_generation(self, expand_size=1, is_encoder_decoder=True, input_ids=None, **model_kwargs):
        """Repeat the decoder's rows for the beams; all beams of a sentence read one copy of its encoding."""
        if self.config._attn_implementation not in SHARED_ENCODING_KERNELS:
            return super()._expand_inputs_for_generation(expand_size, is_encoder_decoder, input_ids, **model_kwargs)
        shared = {name: model_kwargs.pop(name, None) for name in ("encoder_outputs", "attention_mask")}
        input_ids, model_kwargs = super()._expand_inputs_for_generation(expand_size, False, input_ids, **model_kwargs)
        model_kwargs.update({name: value for name, value in shared.items() if value is not None})
        return input_ids, model_kwargs

    def _sample(
        self,
        input_ids: torch.LongTensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        inputs_tensor: torch.Tensor | None = None,
        ensemble: Sequence["VaswaniGenerationMixin"] = (),
        shortlist: Sequence[int] | torch.Tensor | None = None,
        **kwargs,
    ):
        """Greedy search and sampling of transformers; what it cannot do is a beam search with one beam."""
        if not ensemble and shortlist is None:
            return super()._sample(input_ids, logits_processor, stopping_criteria, generation_config, **kwargs)
        generation_config.early_stopping = True  # the first </s> that wins ends a greedy search
        return self._beam_search(
            input_ids,
            logits_processor,
            stopping_criteria,
            generation_config,
            inputs_tensor=inputs_tensor,
            ensemble=ensemble,
            shortlist=shortlist,
            **kwargs,
        )

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
        tokenizer: object = None,
        **model_kwargs,
    ) -> GenerateBeamEncoderDecoderOutput | torch.LongTensor:
        """The search of section 6.1; called by `generate` with everything prepared.

        Args:
            inputs_tensor: (B, S) source tokens; read by the further models of an ensemble.
            tokenizer: read before, by the criterion of `stop_strings`.
        """
        records = _Records(generation_config)
        if ensemble and records.wants_states:
            raise ValueError("output_attentions and output_hidden_states are of one model: leave out the ensemble.")
        criteria = further_criteria(stopping_criteria)
        processors, min_length = further_processors(logits_processor), 0
        if not records.wanted:
            ends = _as_list(generation_config.eos_token_id)
            processors, min_length = split_min_length(processors, input_ids.shape[1], ends)
        # Rows may leave the batch unless somebody counts on their places.
        may_leave = not (synced_gpus or records.wanted or criteria) and all(map(is_row_wise, processors))
        if shortlist is not None:
            ends = _as_list(generation_config.eos_token_id)
            shortlist = _as_shortlist(shortlist, ends, self.config.vocab_size, input_ids.device)
            model_kwargs["shortlist"] = shortlist
        # Nobody else needs to see scores of words that are not on it.
        is_narrow = shortlist is not None and not (processors or records.wanted)
        search = self._start_search(
            input_ids,
            generation_config,
            model_kwargs,
            shortlist=shortlist if is_narrow else None,
            min_length=min_length,
            can_rise=can_raise(processors),
        )
        coverage = None
        if generation_config.coverage_penalty:
            for model in (self, *ensemble):
                check_kernel(model.config._attn_implementation)
            coverage = _start_coverage(search, generation_config, model_kwargs)
        calls_forward = synced_gpus or records.wants_states or coverage is not None
        members = self._start_steps(
            ensemble, inputs_tensor, generation_config, model_kwargs, calls_forward=calls_forward
        )
        all_done = False
        while self._has_unfinished_sequences(all_done, synced_gpus, device=input_ids.device):
            logits_of_models = [steps(search.flat_tokens) for steps in members]
            if all_done:  # the other processes of a sharded model still need this one's forward passes
                continue
            logits_of_models = [logits.float() for logits in logits_of_models]
            log_probs = mean_log_probs(
                [
                    # In place where nobody else has the logits: memory that is new each step has to be mapped first.
                    torch.log_softmax(logits, dim=-1, out=logits if steps.owns_logits and not records.wanted else None)
                    for logits, steps in zip(logits_of_models, members, strict=True)
                ]
            )
            logits = log_probs if ensemble else logits_of_models[0]
            if shortlist is not None and not is_narrow:
                log_probs, logits = (_scatter(x, shortlist, self.config.vocab_size) for x in (log_probs, logits))
            log_probs = search.restrict(processors(search.flat_tokens, log_probs))
            records.add(members[0].outputs, logits, log_probs)
            bonus = None
            if coverage is not None:
                bonus = coverage.add([steps.outputs.cross_attentions for steps in members])
            stops = None if not criteria else (lambda tokens, scores=records.scores: criteria(tokens, scores))
            beams = search.advance(log_probs, stops, bonus)
            all_done = search.num_done == len(search.done)
            staying = search.find_staying() if may_leave and search.num_done and not all_done else None
            if staying is not None:
                search.leave(staying)
            if not all_done or synced_gpus:
                for follower in members if coverage is None else (*members, coverage):
                    follower.follow(beams, staying)
        return records.result(search, generation_config, members[0])

    def _start_steps(
        self,
        ensemble: Sequence["VaswaniGenerationMixin"],
        source_ids: torch.LongTensor,
        generation_config: GenerationConfig,
        model_kwargs: dict,
        *,
        calls_forward: bool,
    ) -> list[BeamSteps | ForwardSteps]:
        """How each model takes its steps, this one first; the faster way unless something only `forward` gives."""
        inputs_of_models = [(self, model_kwargs)]
        for member in ensemble:
            prepared = prepare_member(member, source_ids, generation_config, model_kwargs)
            given = {name: model_kwargs[name] for name in ("shortlist", "output_attentions") if name in model_kwargs}
            inputs_of_models.append((member, prepared | given))
        return [
            (ForwardSteps if calls_forward or not BeamSteps.suit(model, generation_config, inputs) else BeamSteps)(
                model, generation_config, inputs
            )
            for model, inputs in inputs_of_models
        ]

    def _start_search(
        self,
        input_ids: torch.LongTensor,
        generation_config: GenerationConfig,
        model_kwargs: dict,
        *,
        shortlist: torch.LongTensor | None,
        min_length: int,
        can_rise: bool,
    ) -> BeamSearch:
        kind = generation_config.length_penalty_type
        alpha, num_beams = generation_config.length_penalty, generation_config.num_beams
        num_sentences = input_ids.shape[0] // num_beams
        most = generation_config.max_length - input_ids.shape[1]
        limits = torch.full((num_sentences,), most, device=input_ids.device)
        forced = _as_list(generation_config.forced_eos_token_id)
        must_end = torch.full_like(limits, bool(forced), dtype=torch.bool)
        own_limits = self._limit_sentences(model_kwargs, generation_config.max_length_offset, input_ids.shape[1])
        if own_limits is not None:
            own_limits = own_limits[:: own_limits.shape[0] // num_sentences].to(limits.device)
            limits, must_end = torch.minimum(limits, own_limits), must_end | (own_limits <= most)
        exact = generation_config.early_stopping == "never"
        return BeamSearch(
            input_ids,
            num_beams=num_beams,
            # Under the exact bound, hypotheses that are not asked for cannot change those that are.
            num_kept=generation_config.num_return_sequences if exact else num_beams,
            limits=limits,
            must_end=must_end,
            length_penalty=lambda length: LENGTH_PENALTIES[kind](length, alpha),
            early_stopping=generation_config.early_stopping,
            eos_token_ids=_as_list(generation_config.eos_token_id),
            pad_token_id=-1 if generation_config.pad_token_id is None else generation_config.pad_token_id,
            forced_token_ids=forced,
            shortlist=shortlist,
            min_length=min_length,
            can_rise=can_rise,
            do_sample=generation_config.do_sample,
        )


class _Records:
    """What `return_dict_in_generate` asks to be kept of each step."""

    NAMES = ("scores", "logits", "decoder_attentions", "cross_attentions", "decoder_hidden_states")

    def __init__(self, config: GenerationConfig):
        flags = (
            config.output_scores,
            config.output_logits,
            config.output_attentions,
            config.output_attentions,
            config.output_hidden_states,
        )
        self.as_dict = bool(config.return_dict_in_generate)
        self.wanted = {name for name, flag in zip(self.NAMES, flags, strict=True) if flag and self.as_dict}
        self.steps: dict[str, tuple] = dict.fromkeys(self.wanted, ())

    @property
    def wants_states(self) -> bool:
        """Whether something from inside the decoder is asked for."""
        return not self.wanted <= {"scores", "logits"}

    @property
    def scores(self) -> tuple | None:
        return self.steps.get("scores")

    def add(self, outputs, logits: torch.Tensor, log_probs: torch.Tensor) -> None:
        for name in self.wanted:
            own = {"scores": log_probs, "logits": logits}
            self.steps[name] += (own[name] if name in own else getattr(outputs, name),)

    def result(self, search: BeamSearch, config: GenerationConfig, steps: BeamSteps | ForwardSteps):
        tokens, scores, parents = search.best(config.num_return_sequences)
        if not self.as_dict:
            return tokens
        encoder = steps.model_kwargs["encoder_outputs"]
        return GenerateBeamEncoderDecoderOutput(
            sequences=tokens,
            sequences_scores=scores,  # without output_scores too: they cost nothing, unlike those of all words
            beam_indices=parents,
            encoder_attentions=encoder.get("attentions") if config.output_attentions else None,
            encoder_hidden_states=encoder.get("hidden_states") if config.output_hidden_states else None,
            past_key_values=steps.cache,
            **self.steps,
        )


def _copy_source_keys(cache: Cache | None) -> None:
    """Keys and values of the source for each row of the target, as transformers returns them: a search shares them."""
    if not (isinstance(cache, EncoderDecoderCache) and type(cache.cross_attention_cache) is DynamicCache):
        return
    rows, sources = (
        {layer.keys.shape[0] for layer in part.layers if layer.is_initialized}
        for part in (cache.self_attention_cache, cache.cross_attention_cache)
    )
    if rows != sources and rows and sources:
        cache.cross_attention_cache.batch_repeat_interleave(rows.pop() // sources.pop())


def _source_limits(kwargs: dict, offset: int | None) -> torch.Tensor | None:
    """(rows,) source length + `offset`, or `None` where the length or the offset is not known."""
    if offset is None:
        return None
    if kwargs.get("attention_mask") is not None:
        return kwargs["attention_mask"].long().sum(dim=-1) + offset
    states = kwargs.get("inputs_embeds")
    if states is None and kwargs.get("encoder_outputs") is not None:
        states = kwargs["encoder_outputs"][0]
    if states is None:
        return None
    return torch.full((states.shape[0],), states.shape[1] + offset, device=states.device)


def _start_coverage(search: BeamSearch, config: GenerationConfig, model_kwargs: dict) -> BeamCoverage:
    """What counts the coverage; asks the steps for attention weights."""
    model_kwargs["output_attentions"] = True
    mask = model_kwargs.get("attention_mask")
    if mask is None:
        mask = model_kwargs["encoder_outputs"].last_hidden_state.new_ones(
            model_kwargs["encoder_outputs"].last_hidden_state.shape[:2]
        )
    mask = mask[:: len(mask) // len(search.limits)].bool()  # one row a sentence
    return BeamCoverage(
        mask,
        num_beams=search.num_beams,
        beta=config.coverage_penalty,
        prompt_mask=model_kwargs.get("decoder_attention_mask"),
    )


def _as_shortlist(
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


def _scatter(scores: torch.Tensor, shortlist: torch.LongTensor, vocab_size: int) -> torch.Tensor:
    """`scores` (rows, words of the shortlist) over the whole vocabulary, with -inf at all others."""
    return scores.new_full((len(scores), vocab_size), -torch.inf).index_copy_(1, shortlist, scores)


def _prompt_length(prompt: torch.Tensor | None, start_token_id: int | list[int] | torch.Tensor) -> int:
    """Tokens in front of the new ones: transformers adds the start token where no row of `prompt` begins with it."""
    if prompt is None:
        return 1
    start = torch.as_tensor(start_token_id, device=prompt.device)
    return prompt.shape[1] + int((prompt[:, 0] != start).all())


def _mask_prompt(kwargs: dict, *, start_token_id: int | list[int] | torch.Tensor, pad_token_id: int | None) -> None:
    """Derive the missing mask of a padded prompt in `kwargs`, and refuse padding where the new words begin."""
    prompt, mask = kwargs.get("decoder_input_ids"), kwargs.get("decoder_attention_mask")
    if prompt is None:
        return
    starts_with_padding = pad_token_id in _as_list(start_token_id)  # then padding cannot be told from a start
    if mask is None and pad_token_id is not None and not starts_with_padding and (prompt == pad_token_id).any():
        kwargs["decoder_attention_mask"] = mask = (prompt != pad_token_id).long()
    if mask is not None and not mask[:, -1].all():
        raise ValueError(
            "decoder_input_ids of different lengths must be padded on the left: new words follow the last token of "
            "each row, which is padding in some."
        )


def _check_source(source_ids: torch.Tensor | None, kwargs: dict, option: Callable[[str], object]) -> None:
    """Refuse options that need the source tokens where these are not given, and those for decoder-only models."""
    if source_ids is not None and not len(source_ids):
        raise ValueError(f"there is no sentence to translate: input_ids has shape {tuple(source_ids.shape)}.")
    needs_tokens = {"encoder_repetition_penalty": (None, 1.0), "encoder_no_repeat_ngram_size": (None, 0)}
    for name, off in needs_tokens.items():
        if source_ids is None and option(name) not in off:
            raise ValueError(f"{name}={option(name)!r} compares with the source tokens: pass input_ids.")
    for name in ("negative_prompt_ids", "negative_prompt_attention_mask"):
        if kwargs.get(name) is not None:
            raise ValueError(f"{name} is not supported: classifier-free guidance is for decoder-only models.")


def _as_list(token_ids: int | list[int] | torch.Tensor | None) -> list[int]:
    if token_ids is None:
        return []
    if isinstance(token_ids, torch.Tensor):
        return token_ids.flatten().tolist()
    return list(token_ids) if isinstance(token_ids, (list, tuple)) else [token_ids]
