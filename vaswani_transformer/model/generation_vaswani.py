"""`generate()` with the search of section 6.1 of the paper: read the call, start the steps, search, pack the result.

This file overrides only `generate()` of transformers' search. It calls these private methods of `GenerationMixin`:
`_prepare_special_tokens`, `_validate_model_kwargs`, `_get_logits_processor`, `_get_stopping_criteria`,
`_prepare_cache_for_generation`, `_valid_auto_compile_criteria` and `_has_unfinished_sequences`. In a `GenerationConfig`
it calls and overrides `_get_default_generation_params`, reads `_decoder_start_token_tensor` and sets
`_eos_token_tensor`. In the config of the model it reads `_attn_implementation`.

Shapes: B sentences, b beams, S source tokens, P tokens of a prompt, D d_model, V vocab_size.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import NamedTuple, Protocol

import torch
import transformers
from torch import LongTensor, Tensor
from transformers import GenerationConfig, GenerationMixin
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.generation import (
    ExponentialDecayLengthPenalty,
    GenerationMode,
    LogitNormalization,
    LogitsProcessorList,
    SequenceBiasLogitsProcessor,
    StoppingCriteriaList,
    WatermarkLogitsProcessor,
    logits_process,
)
from transformers.generation.utils import GenerateBeamEncoderDecoderOutput, GenerateEncoderDecoderOutput
from transformers.integrations import is_deepspeed_zero3_enabled
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import ModelOutput

from .configuration_vaswani import VaswaniConfig
from .layers_vaswani import CACHE, build_padding_mask, choose_cache
from .search_vaswani import (
    BeamSearch,
    ForwardSteps,
    SearchOptions,
    Steps,
    Witness,
    find_ways,
    has_hooks,
    logger,
    run_search,
)

# The options that transformers turns into logits processors, stopping criteria or caches, and (last line) options that
# do not concern a search. Our search supports these options and the fields of `SearchOptions`. It refuses every other
# option, unless that option is off.
OF_TRANSFORMERS = """
    min_length min_new_tokens max_time stop_strings forced_bos_token_id bos_token_id decoder_start_token_id
    repetition_penalty encoder_repetition_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size
    bad_words_ids suppress_tokens begin_suppress_tokens sequence_bias remove_invalid_values
    exponential_decay_length_penalty renormalize_logits
    temperature top_k top_p top_h min_p typical_p epsilon_cutoff eta_cutoff
    use_cache cache_implementation max_cache_len compile_config disable_compile
    transformers_version language task alignment_heads
""".split()  # noqa: SIM905 - a list would have a line for each name
CALLS_PER_CHECK = 16  # see `_decode`
OFF = {"guidance_scale": 1, "num_beam_groups": 1}  # values that turn an option off, besides None, False and 0


class VaswaniGenerationConfig(GenerationConfig):
    """The options of a search. All options that `generate()` accepts can be saved.

    transformers refuses to save an option that has no effect in its own search, such as a length penalty beside
    `num_beams=1`. Here such an option is saved. The penalty divides the scores of our greedy search too, and a later
    call may have more beams.
    """

    # `GenerationConfig.update` skips names that are no attributes, so these two options need a default here.
    length_penalty_type = None
    max_length_offset = None

    def validate(self, strict: bool = False, **kwargs) -> None:
        """Raise a ValueError for a wrong value, but accept an option without effect; `strict` is True before saving."""
        # Some options have an effect only with `do_sample` or with several beams. Without these, transformers warns of
        # such an option, unless the caller has set `do_sample` or `num_beams`, but not the option. So we say that the
        # caller has set only `do_sample` and `num_beams`.
        super().validate(user_set_attributes={"do_sample", "num_beams"})
        if strict:
            SearchOptions.resolve(self)

    @staticmethod
    def _get_default_generation_params() -> dict:
        """Return transformers' defaults, but with a `max_length` of 0, which means no limit here.

        With `predict_with_generate`, Seq2SeqTrainer writes these defaults into the `generation_config` of the model.
        With transformers' default of 20, all later translations would end at 20 tokens.
        """
        return GenerationConfig._get_default_generation_params() | {"max_length": 0}

    def to_dict(self) -> dict:
        """Return the options in a form that JSON can hold: tensors and tuples become lists."""
        options = _to_plain(super().to_dict())
        return options | {"max_length": options.get("max_length") or None}


class Source(NamedTuple):
    """The sentences to translate.

    Attributes:
        ids, embeds, encoded: the tokens (B, S), embeddings (B, S, D) or output of the encoder. Those that the caller
            does not give are `None`.
        states: the first of these three that is not `None`, (B, S, ...).
        mask: (B, S), 0 at padding; `None` if unknown.
        lengths: (B,), the number of tokens of each sentence.
    """

    ids: LongTensor | None
    embeds: Tensor | None
    encoded: ModelOutput | tuple | None
    states: Tensor
    mask: Tensor | None
    lengths: LongTensor


@dataclass(frozen=True)
class Call:
    """What one call of `generate` asks for.

    Attributes:
        options: the options of the search.
        source: the sentences.
        prompt: (B, P), the tokens with which the translations begin.
        limits: (B,), the most new tokens of each translation.
        must_end: (B,), True where a translation at its limit must end with an end token, False where it is cut.
        config: all options, in the form that transformers reads.
        model_kwargs: further arguments of `forward`.
        given: the options and the arguments of `forward`, as the caller gave them.
        tokenizer: the caller's tokenizer, which `stop_strings` need.
        synced_gpus: True if all processes must take the same number of steps, as for DeepSpeed ZeRO-3.
        only_transformers: what was asked for that only transformers' loop can do, such as a streamer.
        only_forward: what was asked for that an engine cannot do, such as attention weights.
    """

    options: SearchOptions
    source: Source
    prompt: LongTensor
    limits: LongTensor
    must_end: Tensor
    config: GenerationConfig
    model_kwargs: dict
    given: dict
    tokenizer: object
    synced_gpus: bool
    only_transformers: list[str]
    only_forward: list[str]

    def find_way(self) -> str | None:
        """Return the kind of cache that `forward` uses, for `find_ways`; `None` without one, or if it holds tokens."""
        cache = self.model_kwargs.get(CACHE)
        if not self.config.use_cache or (cache is not None and cache.get_seq_length() > 0):
            return None
        return f"a cache ({self.config.cache_implementation or 'dynamic' if cache is None else 'given'})"


class Faster(Protocol):
    """The package's faster code, which computes the same; see the functions that registration.py names."""

    search_class: type[BeamSearch]
    find_engine: Callable
    build_engine: Callable
    sum_loss: Callable


@dataclass
class VaswaniGreedyOutput(GenerateEncoderDecoderOutput):
    """The output of transformers' greedy search, with `sequences_scores` (B,) added: log P / lp, as in beam search."""

    sequences_scores: Tensor | None = None


class VaswaniGenerationMixin(GenerationMixin):
    """`generate()` with the paper's beam search, for the model and for engines.

    Attributes:
        faster: the package's faster code, which importing vaswani_transformer sets. It is `None` in a model that is
            loaded with trust_remote_code. A class that sets `None` decodes by its `forward` alone.
    """

    faster: Faster | None = None

    @property
    def generation_config(self) -> GenerationConfig:
        """The default options of a search; the arguments of a call override them."""
        return self._generation_config

    @generation_config.setter
    def generation_config(self, config: GenerationConfig) -> None:
        self._generation_config = _take_over(config)

    @torch.no_grad()
    def generate(
        self,
        inputs: Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        logits_processor: LogitsProcessorList | None = None,
        stopping_criteria: StoppingCriteriaList | None = None,
        prefix_allowed_tokens_fn: Callable | None = None,
        synced_gpus: bool | None = None,
        assistant_model=None,
        streamer=None,
        *,
        custom_generate: str | Callable | None = None,
        engine=None,
        **kwargs,
    ) -> LongTensor | ModelOutput:
        """Search as in section 6.1. Arguments and results are those of `transformers.GenerationMixin.generate`.

        The options `length_penalty_type` and `max_length_offset` and the argument `engine` are additions. With a
        streamer, an assistant or `custom_generate`, the loop of transformers decodes instead of this search. It also
        draws samples with one beam (see `engine` for an exception). That loop uses the longest limit of the batch for
        all sentences. A missing mask is derived from the padding. A prompt in `decoder_input_ids` must be padded on the
        left.

        `early_stopping="never"` is exact only if log P of a token is never above 0. A positive `sequence_bias` or a
        processor of the caller may raise log P above 0. The search then runs up to the limit, unless
        `renormalize_logits=True`. The `scores` that a beam search returns are log P of the next tokens, after the
        processors. Their sum over the tokens of a hypothesis is its log P. Where a hypothesis must end, only the end
        tokens keep their log P, and all other tokens get -inf. With `forced_eos_token_id`, that token gets 0 instead,
        and all others get -inf.

        Args:
            engine: what `build_engine()` returned, or another object with `encode` and `start`. It serves many calls,
                and keeps the weights that the model had when the engine was built. With an engine, samples with one
                beam are drawn by the search of this class, if each sentence needs one sample only. An engine returns no
                `past_key_values`. The model's `forward` does what an engine cannot do: attention weights, hidden
                states, a caller's cache, padded prompts.

        Raises:
            ValueError: for an option that this search does not support or that transformers refuses.
            FloatingPointError: if the model's scores are not finite.
        """
        asked = {"streamer": streamer, "assistant_model": assistant_model, "custom_generate": custom_generate}
        call = self.read_call(inputs, generation_config, kwargs, engine=engine, synced_gpus=synced_gpus, asked=asked)
        arguments = {
            "inputs": inputs,
            "generation_config": generation_config,
            "synced_gpus": synced_gpus,
            "logits_processor": logits_processor,
            "stopping_criteria": stopping_criteria,
            "prefix_allowed_tokens_fn": prefix_allowed_tokens_fn,
        }
        model = self if engine is None else getattr(engine, "model", lambda: None)()
        decoder = self._choose_decoder(call, engine, model)
        if decoder == "transformers":
            return self._delegate(call, **arguments, **asked)
        _refuse_others(call.config)
        output = None if decoder is None and self is not model else self._decode(call, decoder, model, arguments)
        # Where a faster way is refuted, the model takes the next one.
        return model.generate(**arguments, **call.given | {CACHE: None}) if output is None else output

    def _decode(self, call: Call, engine, model, arguments: dict) -> LongTensor | ModelOutput | None:
        """Return what the search finds, or `None` if its steps do not compute what the `forward` of `model` computes.

        A faster way of computing the steps is checked at its first call, after each change of the model that PyTorch
        shows, and at each sixteenth call.

        Args:
            engine: computes the steps; `None` for `forward`.
            model: the model of the engine, or this model; `None` if it no longer exists.
            arguments: of `generate`, for the logits processors and the stopping criteria.
        """
        now = {} if model is None else find_ways(model)
        is_hooked = model is not None and any(map(has_hooks, model.modules()))
        ways = getattr(engine, "ways", now)
        steps, logits, encoded = self._start_steps(call, engine, ways)
        num_calls = ways.get(steps.way, 0)
        # Hooks that know the rows of a batch, processes that wait for each other, and an engine with earlier weights
        # allow no check.
        may_check = steps.way is not None and ways is now and not (is_hooked or call.synced_gpus)
        witness = Witness(num_calls) if may_check and num_calls % CALLS_PER_CHECK == 0 else None
        processors, criteria = self._build_rules(call, arguments)
        can_rise = may_raise_log_p(processors)
        if can_rise and call.options.num_beams > 1 and call.options.early_stopping == "never":
            logger.warning_once(
                "exponential_decay_length_penalty, sequence_bias, a watermark or a logits processor of yours can raise "
                "log P of a token above 0. Then a longer translation may still score higher, so the search runs to the "
                "length limit. To end earlier, pass early_stopping=True or renormalize_logits=True."
            )
        search_class = BeamSearch if self.faster is None else self.faster.search_class
        hypotheses = search_class(
            call.prompt, call.options, limits=call.limits, must_end=call.must_end, can_rise=can_rise
        )
        records = call.options.start_records()
        # Sentences whose search has ended leave the batch, and other rows move up. This must not happen if something
        # may depend on the places of the rows: processors, criteria, records, hooks, further arguments of `forward`, or
        # a cache that the caller sees.
        has_places = isinstance(steps, ForwardSteps) and (
            is_hooked or call.options.return_dict_in_generate or call.model_kwargs
        )

        def is_right() -> bool:
            return witness.confirms(partial(model._compute, call, encoded if engine is None else None))

        try:
            run_search(
                hypotheses,
                steps,
                logits,
                processors=processors,
                criteria=criteria,
                records=records,
                may_evict=not (call.synced_gpus or records or criteria or processors or has_places),
                continues=lambda all_done: self._has_unfinished_sequences(all_done, call.synced_gpus, logits.device),
                witness=witness,
            )
        except Exception:  # A faster way that loses positions may end in an error.
            if witness is None or is_right():
                raise
        else:
            ways[steps.way] = num_calls + 1
            if witness is None or is_right():
                return _pack(call.options, hypotheses, steps, encoded, records)
        ways[steps.way] = -1
        logger.warning(
            f"{steps.way} gives other logits than the forward of this {type(model).__name__} without a cache, in "
            f"transformers {transformers.__version__} and torch {torch.__version__}. The model now decodes without it, "
            f"which is right but slower. Up to {num_calls and CALLS_PER_CHECK - 1} earlier calls may be wrong."
        )
        return None

    def read_call(
        self,
        inputs: Tensor | None,
        generation_config: GenerationConfig | None,
        kwargs: dict,
        *,
        engine,
        synced_gpus: bool | None,
        asked: dict,
    ) -> Call:
        """Return what a call of `generate` asks for, with all options filled in and the limit of each sentence.

        Args:
            asked: arguments of `generate` that only transformers' loop knows.
        """
        cache = choose_cache(kwargs.pop("past_key_values", None), kwargs.pop("cache", None))
        given = kwargs if cache is None else kwargs | {CACHE: cache}
        given.pop("labels", None)
        options, config, model_kwargs = self.resolve_options(generation_config, given)
        source = _take_source(inputs, model_kwargs, self.config, self.device)
        device = source.states.device
        self._prepare_special_tokens(config, device=device)
        if (
            device.type == "cpu"
            and config.use_cache
            and (self.config._attn_implementation == "flex_attention" or "offload" in str(config.cache_implementation))
        ):
            raise ValueError(
                "flex_attention and offloaded caches need a GPU: load the model with 'sdpa', or pass use_cache=False."
            )
        prompt = _prepare_prompt(model_kwargs, config, len(source.states))
        limits, must_end = options.find_limits(
            source.lengths,
            prompt_length=prompt.shape[1],
            config=getattr(engine, "config", self.config),
        )
        synced_gpus = is_deepspeed_zero3_enabled() if synced_gpus is None else synced_gpus
        tokenizer = model_kwargs.pop("tokenizer", None)
        only_transformers = {
            **asked,
            "prompt_lookup_num_tokens": config.prompt_lookup_num_tokens,
            "is_assistant": config.is_assistant,
            "several samples": options.do_sample and options.num_beams == 1 < options.num_return_sequences,
        }
        only_forward = {
            "synced_gpus": synced_gpus,
            "use_cache=False": config.use_cache is False,
            "cache_implementation": config.cache_implementation,
            **options.find_flags(),
            **model_kwargs,
        }
        if hasattr(self, "forward") and asked.get("custom_generate") is None:
            self._validate_model_kwargs(model_kwargs.copy())
        return Call(
            options=options,
            source=source,
            prompt=prompt,
            limits=limits,
            must_end=must_end,
            config=config,
            tokenizer=tokenizer,
            model_kwargs=model_kwargs,
            given=given,
            synced_gpus=synced_gpus,
            only_transformers=_list_given(only_transformers),
            only_forward=_list_given(only_forward),
        )

    def _choose_decoder(self, call: Call, engine, model):
        """Return who computes the steps: "transformers" for its loop, an engine, or `None` for `forward`.

        transformers' loop does what only it can do, and draws samples with one beam if there is no engine. `forward`
        does what an engine cannot do: attention weights, hidden states, a caller's cache, padded prompts. Else the
        given engine decodes, or an engine for this call alone.

        Args:
            model: the model from which the given engine was built; `None` if it no longer exists.

        Raises:
            ValueError: if the given engine cannot do what was asked for, and this is not its model; or for a streamer
                or an assistant with several beams.
        """
        options, asked = call.options, call.only_transformers
        if options.num_beams > 1 and {"streamer", "assistant_model", "prompt_lookup_num_tokens"} & {*asked}:
            raise ValueError("a streamer and an assistant follow one hypothesis: pass num_beams=1.")
        if engine is not None and model is not self and (asked or call.only_forward):
            raise ValueError(
                f"an engine cannot decode with {', '.join(asked or call.only_forward)}: call generate() of the model, "
                f"without an engine."
            )
        if getattr(engine, "is_refuted", False):
            engine = None
        if asked or (engine is None and options.do_sample and options.num_beams == 1):
            return "transformers"
        if call.only_forward or engine is not None:
            return None if call.only_forward else engine
        # An output with `return_dict_in_generate` holds a cache, which an engine does not have.
        if self.faster is None or options.return_dict_in_generate or model is not self:
            return None
        return self.faster.find_engine(self, for_one_call=True)

    def resolve_options(
        self, generation_config: GenerationConfig | None, kwargs: dict
    ) -> tuple[SearchOptions, GenerationConfig, dict]:
        """Return the options of our search, all options for transformers, and the arguments of `forward`.

        `kwargs` override `generation_config`, which overrides the `generation_config` of the model.
        """
        config = copy.deepcopy(_take_over(generation_config))
        config.update(**self.generation_config.to_dict(), defaults_only=True, allow_custom_entries=True)
        model_kwargs = config.update(**kwargs)
        options = SearchOptions.resolve(config)
        config.update(**config._get_default_generation_params(), defaults_only=True)
        return options, config, model_kwargs

    def _delegate(self, call: Call, **arguments) -> LongTensor | ModelOutput:
        """Return what transformers' loop decodes, with the longest limit of the batch for all sentences."""
        options = call.given | {
            "attention_mask": call.source.mask,
            "decoder_input_ids": call.prompt,
            "decoder_attention_mask": call.model_kwargs.get("decoder_attention_mask"),
            "max_length": None,
            "max_new_tokens": int(call.limits.max()),
        }
        # The loop does not show its logits. So after each change a search of three words checks the cache before it.
        ways, way = find_ways(self), call.find_way()
        if way is not None and way not in ways:
            trial = replace(
                call,
                options=replace(call.options, num_beams=1, do_sample=False, num_return_sequences=1),
                limits=call.limits.clamp(max=3),
                model_kwargs=copy.deepcopy(call.model_kwargs),  # A cache of the caller stays empty.
            )
            self._decode(trial, None, self, arguments)
        if ways.get(way, 0) < 0:
            options["use_cache"] = False
        return super().generate(**arguments, **options)

    def _build_rules(self, call: Call, arguments: dict) -> tuple[LogitsProcessorList, StoppingCriteriaList]:
        """Return the logits processors and stopping criteria that transformers builds for a call.

        Our search itself applies the limits, the end tokens and a forced end token, so they are removed from the config
        that transformers reads here. The end tokens are removed only after the processors are built, because the
        processor of `min_length` needs them.
        """
        config = copy.copy(call.config)
        config.forced_eos_token_id = config.max_length = None
        processors = self._get_logits_processor(
            generation_config=config,
            input_ids_seq_length=call.prompt.shape[1],
            encoder_input_ids=call.source.states,
            prefix_allowed_tokens_fn=arguments["prefix_allowed_tokens_fn"],
            logits_processor=arguments["logits_processor"],
            device=call.source.states.device,
        )
        config._eos_token_tensor = None
        criteria = self._get_stopping_criteria(
            config, arguments["stopping_criteria"] or StoppingCriteriaList(), tokenizer=call.tokenizer
        )
        return processors, criteria

    def _start_steps(self, call: Call, engine, ways: dict[str, int]) -> tuple[Steps, Tensor, ModelOutput | tuple]:
        """Return the steps of a search, the first logits (B * b, V), and the output of the encoder.

        The steps are an object that computes the logits of each next token, by `engine` or else by `forward`.
        """
        source, flags = call.source, call.options.find_flags()
        if source.encoded is None and source.ids is not None and engine is not None:
            encoded = (engine.encode(source.ids, source.mask),)
        else:
            encoded = self._encode(source, flags)
        num_beams = call.options.num_beams
        if engine is not None:
            return *engine.start(encoded[0], source.mask, prompt=call.prompt, num_beams=num_beams), encoded
        steps = self._build_forward_steps(call, encoded, ways)
        return steps, steps(call.prompt.repeat_interleave(num_beams, dim=0)), encoded

    def _build_forward_steps(self, call: Call, encoded: ModelOutput, ways: dict[str, int]) -> ForwardSteps:
        """Return steps that call `forward`, with the cache that `call` asks for, unless that cache is refuted."""
        config = call.config
        model_kwargs = call.model_kwargs | call.options.find_flags()
        cache = model_kwargs.pop(CACHE, None)
        way = call.find_way()
        if not config.use_cache or ways.get(way, 0) < 0:
            cache = None
        elif cache is None and config.cache_implementation is None:
            # The usual cache is created here, which is quicker: transformers would copy the model's config first, and
            # then create an equal cache.
            cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        else:
            holder = {CACHE: cache, "encoder_outputs": encoded}  # transformers stores the cache in it
            num_tokens = call.prompt.shape[1] + int(call.limits.max()) - 1  # the last token is not read
            self._prepare_cache_for_generation(config, holder, GenerationMode.BEAM_SEARCH, len(call.prompt), num_tokens)
            cache = holder[CACHE]
            if not isinstance(cache, EncoderDecoderCache):
                cache = EncoderDecoderCache(cache, DynamicCache())
            if 0 < cache.get_max_length(0) < num_tokens:
                raise ValueError(
                    f"a cache of {cache.get_max_length(0)} tokens is too short for {num_tokens}: lower max_new_tokens."
                )
        forward = None
        if (
            cache is not None
            and config.cache_implementation is not None
            and self._valid_auto_compile_criteria({CACHE: cache}, config)
        ):
            forward = self.get_compiled_call(config.compile_config)
        return ForwardSteps(
            self,
            encoded[0],
            call.source.mask,
            num_beams=call.options.num_beams,
            cache=cache,
            forward=forward,
            way=way,
            **model_kwargs,
        )

    def _encode(self, source: Source, flags: dict[str, bool]) -> ModelOutput | tuple:
        """Return the output of the encoder."""
        return source.encoded or self.get_encoder()(
            input_ids=source.ids, inputs_embeds=source.embeds, attention_mask=source.mask, **flags
        )

    def _compute(self, call: Call, encoded: ModelOutput | tuple | None, place: Tensor, tokens: LongTensor) -> Tensor:
        """Return the logits (n, V) of `forward` without a cache, after `tokens` (n, T) for the sentence at `place`.

        Args:
            encoded: the output of this model's encoder for all sentences, or `None`.
        """
        rows = place.expand(len(tokens))

        def take(x: object) -> object:
            return x[rows] if isinstance(x, Tensor) else x

        row = Source(*map(take, call.source))
        encoded = encoded or call.source.encoded
        encoding = self._encode(row, {})[0] if encoded is None else take(encoded[0])
        others = {name: take(x) for name, x in call.model_kwargs.items() if name != CACHE}
        steps = ForwardSteps(self, encoding, row.mask, num_beams=1, cache=None, **others)
        steps(tokens)
        return steps.outputs.logits[:, -1]

    def build_engine(self, **options):
        """Return an engine of this model, which decodes faster; see `vaswani_transformer.engine.engine.build_engine`.

        Args:
            options: `dtype`, by default the model's.

        Raises:
            ImportError: without the package, because the code of engines is not saved with a model.
        """
        if self.faster is not None:
            return self.faster.build_engine(self, **options)
        raise ImportError(
            "engines come with the package vaswani_transformer: install it, import it, and load the model without "
            "trust_remote_code."
        )

    def adjust_generation_fn(self, generation_config, from_auto_class, from_pipeline, name, *args, **kwargs):
        """Give a loaded model the search options in its `generation_config.json`, else those of section 6.1."""
        if generation_config is None and name is not None:
            options = {key: value for key, value in kwargs.items() if key != "trust_remote_code"}
            try:
                generation_config = VaswaniGenerationConfig.from_pretrained(name, **options)
            except OSError:  # there is no such file
                generation_config = build_generation_config(self.config)
        super().adjust_generation_fn(generation_config, from_auto_class, from_pipeline, name, *args, **kwargs)
        # transformers stores a hash that is different in each process. With it, pickles of the model would differ too,
        # and datasets.map would not find its cached results.
        vars(self.generation_config).pop("_original_object_hash", None)


def build_generation_config(config: VaswaniConfig) -> VaswaniGenerationConfig:
    """Return the search of section 6.1: beam 4, alpha 0.6, at most 50 tokens more than the source."""
    return VaswaniGenerationConfig(
        num_beams=4,
        length_penalty=0.6,
        length_penalty_type="gnmt",
        max_length_offset=50,
        early_stopping="never",  # end early only where this changes no result; transformers' default may change some
        bos_token_id=config.bos_token_id,
        pad_token_id=config.pad_token_id,
        eos_token_id=config.eos_token_id,
        decoder_start_token_id=config.decoder_start_token_id,
    )


def may_raise_log_p(processors: LogitsProcessorList) -> bool:
    """Return True if `processors` may give a token log P above 0, so that a longer hypothesis may score higher.

    A processor that is not from transformers counts, because nothing is known of it.
    """
    if processors and isinstance(processors[-1], LogitNormalization):
        return False
    return any(
        max(processor.sequence_bias.values()) > 0
        if isinstance(processor, SequenceBiasLogitsProcessor)  # bad_words_ids makes one, too, with biases of -inf
        else isinstance(processor, ExponentialDecayLengthPenalty | WatermarkLogitsProcessor)
        or type(processor).__module__ != logits_process.__name__
        for processor in processors
    )


def _pack(
    options: SearchOptions,
    hypotheses: BeamSearch,
    steps: Steps,
    encoded: ModelOutput | tuple,
    records: dict[str, tuple],
) -> LongTensor | ModelOutput:
    """Return the tokens of the best hypotheses, or transformers' output class with all that was recorded."""
    tokens, scores, parents = hypotheses.best()
    if not options.return_dict_in_generate:
        return tokens
    output = {
        "sequences": tokens,
        "sequences_scores": scores,
        CACHE: getattr(steps, "cache", None),
        **records,
    }
    for name in options.find_flags():
        name = name.removeprefix("output_")
        output[f"encoder_{name}"] = getattr(encoded, name, None)
    if options.num_beams == 1:
        return VaswaniGreedyOutput(**output)
    return GenerateBeamEncoderDecoderOutput(beam_indices=parents, **output)


def _take_over(config: GenerationConfig | None) -> VaswaniGenerationConfig:
    """Return a `VaswaniGenerationConfig` that shares the attributes of `config`: a change of either changes both."""
    if isinstance(config, VaswaniGenerationConfig):
        return config
    ours = VaswaniGenerationConfig()
    if config is not None:
        ours.__dict__ = config.__dict__
    return ours


def _list_given(options: dict) -> list[str]:
    """Return the names of the options that are not off."""
    return [name for name, value in options.items() if value is not None and value is not False]


def _to_plain(value: object) -> object:
    """Return `value` with tensors, arrays, tuples, sets, and dicts whose keys are tuples, turned into lists."""
    if hasattr(value, "tolist"):  # a tensor or a NumPy array
        return value.tolist()
    if isinstance(value, dict):
        if any(isinstance(key, tuple) for key in value):
            return _to_plain(list(value.items()))
        return {key: _to_plain(x) for key, x in value.items()}
    return [_to_plain(x) for x in value] if isinstance(value, list | tuple | set) else value


def _refuse_others(config: GenerationConfig) -> None:
    """Raise a ValueError for an option that is not off and that our search does not support."""
    allowed = {*OF_TRANSFORMERS, *(field.name for field in fields(SearchOptions))}
    defaults = config._get_default_generation_params()
    for name, value in vars(config).items():
        if name in allowed or name.startswith("_"):
            continue  # an allowed option may be a tensor, which the next line could not compare
        if value not in (None, 0, OFF.get(name), defaults.get(name)):
            raise ValueError(
                f"this model's search does not support the given value of {name}: leave it out of the call and of "
                f"generation_config.json."
            )


def _take_source(inputs: Tensor | None, model_kwargs: dict, config: VaswaniConfig, device: torch.device) -> Source:
    """Return the sentences, and remove them from `model_kwargs`, the arguments of `generate` that are no options.

    A missing mask is derived from the padding. Without sentences, the bos token is the only sentence, as in
    transformers.

    Raises:
        ValueError: if the sentences are no tensor, if the batch is empty, or if there is neither a sentence nor a bos
            token.
    """
    ids = model_kwargs.pop("input_ids", None) if inputs is None else inputs
    embeds = model_kwargs.pop("inputs_embeds", None)
    encoded = model_kwargs.pop("encoder_outputs", None)
    if isinstance(encoded, tuple):
        encoded = BaseModelOutput(*encoded)
    mask = model_kwargs.pop("attention_mask", None)
    states = next((x for x in (ids, embeds, encoded and encoded[0]) if x is not None), None)
    if states is None and config.bos_token_id is not None:
        ids = states = torch.tensor([[config.bos_token_id]], device=device)
    if states is None or not len(states):
        raise ValueError("there is no sentence to translate: give input_ids of at least one sentence.")
    if not isinstance(states, Tensor):
        raise ValueError(
            f'input_ids must be a tensor, got {type(states).__name__}: call tokenizer(sentences, return_tensors="pt").'
        )
    if mask is None and ids is not None:
        mask = build_padding_mask(ids, config)
    lengths = states.new_ones(states.shape[:2], dtype=torch.long) if mask is None else mask
    return Source(ids, embeds, encoded, states, mask, lengths.sum(dim=-1))


def _prepare_prompt(model_kwargs: dict, config: GenerationConfig, num_sentences: int) -> LongTensor:
    """Return the tokens with which the translations begin, (B, P): the start token, then `decoder_input_ids`.

    The mask of a padded prompt is stored in `model_kwargs`.

    Raises:
        ValueError: if the last token of a prompt is padding.
    """
    start = config._decoder_start_token_tensor.expand(num_sentences)[:, None]
    prompt = model_kwargs.pop("decoder_input_ids", None)
    mask = model_kwargs.get("decoder_attention_mask")
    if prompt is None:
        return start
    pad = config.pad_token_id
    # If the start token is also the padding token, padding in a prompt cannot be recognised.
    if mask is None and pad is not None and not (start == pad).any() and (prompt == pad).any():
        mask = (prompt != pad).long()
    if mask is not None and not mask[:, -1].all():
        raise ValueError("decoder_input_ids must be padded on the left: new words follow the last token of each row.")
    if (prompt[:, :1] != start).all():
        prompt = torch.cat([start, prompt], dim=1)
        mask = None if mask is None else torch.nn.functional.pad(mask, (1, 0), value=1)
    if mask is not None:
        model_kwargs["decoder_attention_mask"] = mask
    return prompt
