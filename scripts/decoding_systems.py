"""The systems of `benchmark_decoding.py`: one model in our code, as transformers' MarianMTModel, in CTranslate2.

Each system lives in a process of its own, where `start` and `time_pass` are called: its memory is its own, and the
threads of one system, which look for more work for a while, take no time from another.
"""

import importlib.util
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import torch
from benchmark_common import CLOCKS, MARIAN, OURS, build_marian, peak_growth
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerFast

from vaswani_transformer import VaswaniForConditionalGeneration
from vaswani_transformer.conversion.marian import copy_weights
from vaswani_transformer.memory import keep_few_kernels, keep_freed_memory

Batch = list[list[int]]  # token ids of each sentence, </s> included

CTRANSLATE2, CTRANSLATE2_INT8 = "CTranslate2", "CTranslate2 int8"
PEERS = (MARIAN, CTRANSLATE2, CTRANSLATE2_INT8)
LENGTH_OFFSET = 50

# The search of section 6.1: options of `generate()` besides beam and alpha.
PAPER = {"early_stopping": "never", "max_length_offset": LENGTH_OFFSET}
# Ours by that search: the `dtype` each is loaded with, and whether it keeps an engine between calls, as a `Translator`
# does, or leaves each call of `generate()` to itself.
OURS_VARIANTS = {OURS: ("float32", True), f"{OURS} int8": ("int8", True), f"{OURS}, raw generate()": ("float32", False)}
# Ours in float32 under the penalty and the end of the search that a peer has, and one limit for a whole batch:
# translations have to be the peer's, except those that reach the limit, which end with </s> here and are cut there.
OURS_LIKE_PEERS: dict[str, tuple[str, dict]] = {
    f"{OURS}, as Marian": (MARIAN, {"length_penalty_type": "power", "early_stopping": False}),
    f"{OURS}, as CTranslate2": (CTRANSLATE2, {"length_penalty_type": "power", "early_stopping": True}),
}

TARGET_LENGTH = 20  # of the random translations that all systems must rate equally
LOGITS_TOLERANCE = 1e-4
LOG_PROBS_TOLERANCE = 1e-3


@dataclass(frozen=True)
class Search:
    """The search of all systems: `forced_length` tokens per translation, or as many as it takes to </s>."""

    num_beams: int
    length_penalty: float
    forced_length: int | None = None


class System(Protocol):
    """A system under test; `translate` alone is timed."""

    def prepare(self, batch: Batch) -> object:
        """Return `batch` as the system reads it."""

    def translate(self, inputs: object) -> object: ...

    def read(self, output: object) -> list[list[int]]:
        """Return the token ids of each translation, without start and padding."""


class GenerateSystem:
    """`generate()` of our model or of MarianMTModel.

    Args:
        load: gives the model.
        options: for its `generate`.
        keeps_engine: lay out an engine once, for all calls, and release the model's matrices.
    """

    def __init__(
        self,
        load: Callable[[], PreTrainedModel],
        options: dict,
        search: Search,
        threads: int,
        *,
        keeps_engine: bool = False,
    ):
        torch.set_num_threads(threads)
        self.model = load().eval()
        self.options, self.forced_length = dict(options), search.forced_length
        if keeps_engine:
            self.options["engine"] = self.model.build_engine(releases=True)
        names = ("bos_token_id", "pad_token_id", "eos_token_id", "decoder_start_token_id")
        self.model.generation_config = GenerationConfig(
            num_beams=search.num_beams,
            length_penalty=search.length_penalty,
            **{name: getattr(self.model.config, name) for name in names},
        )

    def prepare(self, batch: Batch) -> dict[str, torch.Tensor]:
        return pad_batch(batch, self.model.config.pad_token_id)

    def translate(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        limits = {}
        if self.forced_length is not None:
            limits = {"min_new_tokens": self.forced_length, "max_new_tokens": self.forced_length}
        elif "max_length_offset" not in self.options:
            limits = {"max_new_tokens": inputs["input_ids"].shape[1] + LENGTH_OFFSET}
        return self.model.generate(**inputs, **self.options, **limits)

    def read(self, output: torch.Tensor) -> list[list[int]]:
        return [row[row != self.model.config.pad_token_id].tolist() for row in output[:, 1:]]


class CTranslate2System:
    """`translate_batch()` of CTranslate2.

    Args:
        folder: a CTranslate2 model.
    """

    def __init__(self, folder: Path, search: Search, threads: int):
        import ctranslate2  # no other system needs it

        self.search = search
        self.translator = ctranslate2.Translator(str(folder), device="cpu", inter_threads=1, intra_threads=threads)
        self.tokens = json.loads((folder / "shared_vocabulary.json").read_text(encoding="utf-8"))
        self.ids = {token: token_id for token_id, token in enumerate(self.tokens)}

    def prepare(self, batch: Batch) -> list[list[str]]:
        return [[self.tokens[token_id] for token_id in ids] for ids in batch]

    def translate(self, inputs: list[list[str]]) -> list:
        forced = self.search.forced_length
        return self.translator.translate_batch(
            inputs,
            beam_size=self.search.num_beams,
            length_penalty=self.search.length_penalty,
            return_end_token=True,  # |Y| counts it, as for the others
            max_input_length=0,
            min_decoding_length=forced or 0,
            max_decoding_length=forced or max(map(len, inputs)) + LENGTH_OFFSET,
        )

    def read(self, output: list) -> list[list[int]]:
        return [[self.ids[token] for token in result.hypotheses[0]] for result in output]

    def rate(self, sources: Batch, targets: Batch) -> list[list[float]]:
        """Return log P of each token of given translations, </s> included."""
        results = self.translator.score_batch(self.prepare(sources), self.prepare(targets))
        return [result.log_probs for result in results]


class Models:
    """One model as each system reads it, in files of `folder`.

    Raises:
        RuntimeError: if what a system computes differs from ours by more than rounding.
    """

    def __init__(
        self,
        model: VaswaniForConditionalGeneration,
        tokenizer: PreTrainedTokenizerFast,
        folder: Path,
        batch: Batch,
    ):
        self.folder = folder
        model = model.cpu()  # where all systems are compared; `load_translator` moves it to a GPU if there is one
        self.marian = build_marian(model.config).eval()
        copy_weights(model, self.marian)
        self.differences = {f"logits of {MARIAN}": largest_difference(model, self.marian, batch)}
        model.save_pretrained(folder / OURS)
        # The whole module: its layer norms have an epsilon that no config of Marian's holds.
        torch.save(self.marian, folder / MARIAN)
        self.has_ctranslate2 = importlib.util.find_spec("ctranslate2") is not None
        if self.has_ctranslate2:
            # Imported here because it may be missing.
            from vaswani_transformer.export.ctranslate2_converter import export_model

            export_model(model, tokenizer, folder / CTRANSLATE2)
            export_model(model, tokenizer, folder / CTRANSLATE2_INT8, quantization="int8")
            threads = torch.get_num_threads()
            system = CTranslate2System(folder / CTRANSLATE2, Search(1, 0.0), threads=1)
            difference = largest_difference_of_log_probs(model, system, batch)
            torch.set_num_threads(threads)  # CTranslate2 sets its own number for the whole process
            self.differences[f"log-probabilities of {CTRANSLATE2}"] = difference

    def build_systems(self, search: Search, *, threads: int) -> dict[str, Callable[[], System]]:
        """Return a builder per system, to be called in its process; ours like a peer if the search ends by itself."""
        variants = {name: (dtype, keeps, PAPER) for name, (dtype, keeps) in OURS_VARIANTS.items()}
        if search.forced_length is None:
            variants |= {name: ("float32", True, options) for name, (_, options) in OURS_LIKE_PEERS.items()}
        load = partial(VaswaniForConditionalGeneration.from_pretrained, self.folder / OURS)
        load_marian = partial(torch.load, self.folder / MARIAN, weights_only=False)
        systems = {
            name: partial(GenerateSystem, partial(load, dtype=dtype), options, search, threads, keeps_engine=keeps)
            for name, (dtype, keeps, options) in variants.items()
        }
        systems[MARIAN] = partial(GenerateSystem, load_marian, {}, search, threads)
        if self.has_ctranslate2:
            for name in (CTRANSLATE2, CTRANSLATE2_INT8):
                systems[name] = partial(CTranslate2System, self.folder / name, search, threads)
        return systems


def find_reference(name: str, search: Search) -> str | None:
    """Return the system that must find the translations of `name`, up to rounding or smaller weights, if any."""
    if name in OURS_LIKE_PEERS:
        return OURS_LIKE_PEERS[name][0]
    if search.forced_length is not None or name in OURS_VARIANTS:
        return None if name == OURS else OURS  # of equal length, translations have one order under any penalty
    return CTRANSLATE2 if name == CTRANSLATE2_INT8 else None


@torch.no_grad()
def largest_difference(model: PreTrainedModel, marian: PreTrainedModel, batch: Batch) -> float:
    """Return the largest difference of the logits of both, for random target tokens."""
    inputs = pad_batch(batch, model.config.pad_token_id)
    decoder_input_ids = torch.randint(4, model.config.vocab_size, (len(batch), TARGET_LENGTH))
    ours, theirs = (
        system(**inputs, decoder_input_ids=decoder_input_ids, use_cache=False).logits for system in (model, marian)
    )
    return _check(f"logits of {MARIAN}", ours, theirs, tolerance=LOGITS_TOLERANCE)


def largest_difference_of_log_probs(
    model: VaswaniForConditionalGeneration, system: CTranslate2System, batch: Batch
) -> float:
    """Return the largest difference of log P of random target tokens, </s> included."""
    targets = torch.randint(4, model.config.vocab_size, (len(batch), TARGET_LENGTH))
    labels = torch.nn.functional.pad(targets, (0, 1), value=model.config.eos_token_id)
    ours = model.score(**pad_batch(batch, model.config.pad_token_id), labels=labels).token_log_probs
    theirs = torch.tensor(system.rate(batch, targets.tolist()))
    return _check(f"log-probabilities of {CTRANSLATE2}", ours, theirs, tolerance=LOG_PROBS_TOLERANCE)


def pad_batch(batch: Batch, pad_token_id: int) -> dict[str, torch.Tensor]:
    """Return `input_ids` and `attention_mask`, (B, S)."""
    input_ids = pad_sequence(list(map(torch.tensor, batch)), batch_first=True, padding_value=pad_token_id)
    return {"input_ids": input_ids, "attention_mask": (input_ids != pad_token_id).long()}


def _check(name: str, ours: torch.Tensor, theirs: torch.Tensor, *, tolerance: float) -> float:
    difference = float((ours - theirs).abs().max())
    if not difference <= tolerance:
        raise RuntimeError(
            f"with the same weights, {name} differ from ours by {difference:.1e}, rounding gives {tolerance:.0e} at "
            f"most: it is not the same model that would be compared."
        )
    return difference


# In the process of a system

STARTED: dict[str, tuple[System, list]] = {}  # with the inputs of its batches


@dataclass(frozen=True)
class FirstPass:
    """Results of a system that translates all batches for the first time.

    Args:
        translations: token ids of each sentence, in order.
        model_memory, search_memory: MiB that the resident memory of the process grows by at its peak, while the model
            is loaded and then while it translates.
    """

    translations: list[list[int]]
    model_memory: float
    search_memory: float


def start(name: str, build: Callable[[], System], batches: Sequence[Batch]) -> FirstPass:
    """Build system `name` in this process and translate `batches` once, which also warms it up.

    Each process has the settings that the command `vaswani` makes, which are good for all systems.
    """
    keep_few_kernels()
    keep_freed_memory()
    systems, outputs = [], []
    model_memory = peak_growth(lambda: systems.append(build()))
    [system] = systems
    inputs = [system.prepare(batch) for batch in batches]
    search_memory = peak_growth(lambda: outputs.extend(map(system.translate, inputs)))
    STARTED[name] = system, inputs
    translations = [tokens for output in outputs for tokens in system.read(output)]
    return FirstPass(translations, model_memory, search_memory)


def time_pass(name: str, clock: str) -> float:
    """Return the seconds that system `name` takes for all its batches."""
    system, inputs = STARTED[name]
    started = CLOCKS[clock]()
    for batch in inputs:
        system.translate(batch)
    return CLOCKS[clock]() - started
