"""Restricted self-attention (section 4, table 1): attention in blocks gives the same results as a mask."""

from types import SimpleNamespace

import pytest
import torch
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.cache_utils import DynamicCache, EncoderDecoderCache, StaticCache

from vaswani_transformer.kernels import window
from vaswani_transformer.kernels.window import WINDOW, window_attention

LONG = 300  # tokens, enough for several blocks
SMALL = {"encoder_layers": 1, "decoder_layers": 1}
KERNELS = ["sdpa", WINDOW]


class LargestTensor(TorchDispatchMode):
    """A mode that counts the entries of the largest tensor that is created."""

    entries = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        outputs = result if isinstance(result, (tuple, list)) else (result,)
        sizes = [x.untyped_storage().nbytes() // x.itemsize for x in outputs if isinstance(x, torch.Tensor)]
        self.entries = max(self.entries, *sizes, 0)
        return result


@pytest.fixture
def block_counts(monkeypatch):
    """Return a list to which each attention in blocks appends its number of blocks."""
    counts = []
    build_mask = window._build_mask

    def build(*args, **kwargs):
        mask = build_mask(*args, **kwargs)
        counts.append(mask.shape[1])
        return mask

    monkeypatch.setattr(window, "_build_mask", build)
    return counts


def random_batch(lengths=(LONG, LONG - 70), *, on_the_left=False):
    """Return source, target and their masks, as arguments of a model. Shorter sentences are padded."""
    torch.manual_seed(0)
    ids = torch.randint(3, 37, (len(lengths), max(lengths)))
    positions = torch.arange(max(lengths))
    lengths = torch.tensor(lengths)[:, None]
    mask = (positions >= max(lengths) - lengths) if on_the_left else (positions < lengths)
    ids = ids.masked_fill(~mask, 1)
    return {"input_ids": ids, "attention_mask": mask.long(), "decoder_input_ids": ids, "decoder_attention_mask": mask}


@pytest.mark.parametrize("on_the_left", [False, True])
@pytest.mark.parametrize("r", [1, 4, 33])
def test_attention_in_blocks_gives_the_logits_of_attention_with_a_mask(build_tiny_model, block_counts, r, on_the_left):
    batch = random_batch(on_the_left=on_the_left)
    options = {"noise": 0.3, "dtype": torch.float64, "attention_window": r}
    masked, in_blocks = (build_tiny_model(attention=kernel, **options)(**batch).logits for kernel in ("eager", WINDOW))
    assert len(block_counts) == 2 + 4  # layers of the encoder, layers of the decoder
    assert min(block_counts) > 4
    real = batch["attention_mask"].bool()
    assert_close(in_blocks[real], masked[real], rtol=0, atol=1e-10)


def test_dropout_drops_some_weights_and_scales_the_others():
    torch.manual_seed(0)
    module = SimpleNamespace(window=3, is_causal=False)
    q, k = torch.randn(2, 1, 2, 400, 4)
    value = torch.ones(1, 2, 400, 4)
    context, _ = window_attention(module, q, k, value, None, 0.5, dropout=0.4)
    assert context.mean() == pytest.approx(1, abs=0.1)
    # The probability that all three keys of a query are dropped is 0.4^3 = 0.064.
    assert 0.03 < (context[..., 0] == 0).float().mean() < 0.1


def test_memory_grows_linearly_with_the_length(build_tiny_model):
    model = build_tiny_model(attention=WINDOW, attention_window=8, attention_dropout=0.1, **SMALL).train()
    largest = []
    for length in (1_000, 2_000):
        ids = torch.randint(3, 37, (1, length))
        with LargestTensor() as tensors:
            encoded = model.model.encoder(ids).last_hidden_state
            # Attention to the source is not restricted. Its memory stays small, because the source is short.
            decoded = model.model.decoder(ids, encoder_hidden_states=encoded[:, :5]).last_hidden_state
            decoded.sum().backward()
        largest.append(tensors.entries)
    assert largest[1] < 2.1 * largest[0] < 1_000**2


def test_attention_in_blocks_compiles_without_graph_breaks(build_tiny_model, block_counts):
    encoder = build_tiny_model(attention=WINDOW, attention_window=4, **SMALL).model.encoder
    compiled = torch.compile(encoder, fullgraph=True, backend="eager")
    ids = random_batch()["input_ids"]
    expected, actual = (stack(ids).last_hidden_state for stack in (encoder, compiled))
    assert len(block_counts) == 2  # one layer, run once without and once with torch.compile
    assert min(block_counts) > 4
    assert_close(actual, expected)


# Decoding


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("r", [1, 2, 5])
@pytest.mark.parametrize("num_beams", [1, 3])
def test_a_search_finds_the_same_translations_with_and_without_a_cache(build_tiny_model, kernel, r, num_beams):
    batch = random_batch((9, 5))
    source = {name: batch[name] for name in ("input_ids", "attention_mask")}
    model = build_tiny_model(noise=0.3, dtype=torch.float64, attention_window=r, attention="eager")
    options = {"num_beams": num_beams, "max_new_tokens": 25, "min_new_tokens": 20, "max_length_offset": None}
    expected = model.generate(**source, **options, use_cache=False)
    assert torch.equal(model.generate(**source, **options), expected)
    model.set_attn_implementation(kernel)
    assert torch.equal(model.generate(**source, **options), expected)


@torch.no_grad()
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("is_fixed", [False, True])
def test_a_cache_that_the_caller_passes_is_read_no_further_back_than_the_window(build_tiny_model, kernel, is_fixed):
    model = build_tiny_model(noise=0.3, dtype=torch.float64, attention_window=3, attention=kernel)
    batch = random_batch((LONG,))
    encoded = model.model.encoder(batch["input_ids"])
    given = StaticCache(model.config, max_cache_len=LONG + 20) if is_fixed else DynamicCache()
    cache = EncoderDecoderCache(given, DynamicCache())
    parts = [
        model(encoder_outputs=encoded, decoder_input_ids=ids, past_key_values=cache).logits
        for ids in batch["decoder_input_ids"].split((200, 1, 1, 70, 28), dim=1)
    ]
    assert cache.get_seq_length() == LONG
    assert_close(torch.cat(parts, dim=1), model(**batch).logits, rtol=0, atol=1e-10)


def test_attention_over_short_sentences_or_with_a_given_mask_uses_no_blocks(build_tiny_model, block_counts):
    model = build_tiny_model(attention=WINDOW, attention_window=4, **SMALL)
    unrestricted = build_tiny_model(**SMALL)
    full_mask = torch.ones(1, 1, LONG, LONG, dtype=torch.bool)
    embeds = unrestricted.model.encoder.embed_tokens(torch.randint(3, 37, (1, LONG)))
    actual = model.model.encoder(inputs_embeds=embeds, attention_mask=full_mask).last_hidden_state
    model(**random_batch((70, 20)))
    assert not block_counts
    assert_close(actual, unrestricted.model.encoder(inputs_embeds=embeds).last_hidden_state)
