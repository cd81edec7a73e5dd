"""One update of the project's trainer and one search of its `generate()`, small, on a device of one's choice.

How many operations they take depends on layers, options and on which sentences are padded or done, not on widths; these
are tiny, so that a CPU computes them at once.
"""

import copy
import os
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from unittest import mock

import torch
from accelerate.state import AcceleratorState

from vaswani_transformer import VaswaniConfig, VaswaniForConditionalGeneration
from vaswani_transformer.data.batching import Update, UpdateStream
from vaswani_transformer.data.preparation import Corpus, prepare
from vaswani_transformer.model import loss_vaswani
from vaswani_transformer.training.recipes import RECIPES, Recipe
from vaswani_transformer.training.trainer import Trainer

WIDTHS = {"d_model": 16, "d_ff": 32, "num_heads": 4}
# Of three lengths, so that some updates hold no padding and others do.
PAIRS = [
    (f"the dog {i % 10} runs" + " far" * (i % 3), f"der hund {i % 10} läuft" + " weit" * (i % 3)) for i in range(60)
]
VOCAB_SIZE, TOKENS_PER_BATCH = 300, 100
SEARCH_VOCAB_SIZE, LONGEST_SOURCE = 500, 24


def build_trainer(recipe_name: str, folder: Path, *, device: str, mixed_precision: str) -> Trainer:
    """The trainer of a recipe with tiny widths, of a few pairs that are prepared in `folder`."""
    recipe = RECIPES[recipe_name]
    changes = {"model": recipe.model | WIDTHS, "tokens_per_batch": TOKENS_PER_BATCH, "compile": False}
    data = folder / "data"
    if not data.exists():
        prepare([Corpus(lambda: PAIRS)], lambda: PAIRS[:2], data, vocab_size=VOCAB_SIZE)
    AcceleratorState._reset_state(reset_partial_state=True)  # there may have been a trainer on another device
    with mock.patch.dict(os.environ, ACCELERATE_TORCH_DEVICE=device):
        options = {"mixed_precision": mixed_precision, "accumulation_steps": 1}
        return Trainer(Recipe(**vars(recipe) | changes), data, folder / "run", **options)


def find_update(trainer: Trainer, *, is_padded: bool) -> Update:
    """The first update with padding, or without, as `DataLoader` gives it, in pinned memory."""
    updates = islice(UpdateStream(trainer.train_pairs, tokens_per_batch=TOKENS_PER_BATCH, seed=0), len(PAIRS))
    update = next(update for update in updates if (update.tokens < update.padded_tokens) == is_padded)
    return update if trainer.accelerator.device.type == "cpu" else update.pin_memory()


def run_update(trainer: Trainer, update: Update, recipe: Recipe) -> None:
    """The update, with as many slices of the loss as a full batch of `recipe` has."""
    num_slices = -(-recipe.tokens_per_batch // (loss_vaswani.LOGITS_PER_SLICE // recipe.vocab_size))
    num_tokens = max(batch["labels"].numel() for batch in update.micro_batches)
    logits_per_slice = -(-num_tokens // num_slices) * len(trainer.tokenizer)
    with mock.patch.object(loss_vaswani, "LOGITS_PER_SLICE", logits_per_slice):
        trainer._run_update(update)


def build_model(*, ends: bool) -> VaswaniForConditionalGeneration:
    """Base's 6 + 6 layers, with tiny widths and random weights; unless it `ends`, no hypothesis takes </s>."""
    torch.manual_seed(0)
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    model = VaswaniForConditionalGeneration(
        VaswaniConfig(vocab_size=SEARCH_VOCAB_SIZE, output_bias=True, **WIDTHS, **tokens)
    )
    if not ends:
        with torch.no_grad():
            model.lm_head.bias[tokens["eos_token_id"]] = -1e4
    return model.eval()


def build_search(
    model: VaswaniForConditionalGeneration, device: str, *, num_sentences: int, **options
) -> Callable[..., torch.LongTensor]:
    """`model.generate` by an engine on `device`, of sentences of 7 to 24 tokens; takes further options."""
    lengths = LONGEST_SOURCE - torch.arange(num_sentences) % 18
    mask = (torch.arange(LONGEST_SOURCE) < lengths[:, None]).long()
    ids = torch.randint(3, SEARCH_VOCAB_SIZE, mask.shape, generator=torch.Generator().manual_seed(0))
    model = copy.deepcopy(model).to(device)
    sources = {"input_ids": (ids * mask).to(device), "attention_mask": mask.to(device)}
    engine = model.build_engine()
    return lambda **further: model.generate(**sources, engine=engine, **options, **further)
