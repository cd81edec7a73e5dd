"""Converted checkpoints of fairseq compute the same as a plain model of PyTorch's Transformer layers."""

import math
from argparse import Namespace

import pytest
import torch
from shortcuts import Program, vaswani, write_lines
from tiny_training import assert_close
from torch import nn

from vaswani_transformer.conversion import fairseq
from vaswani_transformer.conversion.fairseq_dictionary import build_tokenizer, read_dictionary
from vaswani_transformer.loading import load_translator

D, D_FF, HEADS, ENCODER_LAYERS, DECODER_LAYERS = 12, 20, 3, 2, 3
PIECES = ["ein", "klein@@", "er", "Hund", "läuft", ".", "@@", "x@@", "\u2028"]
VOCAB_SIZE = len(PIECES) + 4
PAD, EOS = 1, 2
# Three sentences: without padding, padded on the right, and padded on the left as fairseq does.
SOURCE = torch.tensor([[5, 6, 7, 8, EOS], [9, 4, EOS, PAD, PAD], [PAD, PAD, 4, 9, EOS]])
SETTINGS = {"encoder_attention_heads": HEADS, "decoder_attention_heads": HEADS, "dropout": 0.3, "arch": "transformer"}
# PyTorch's name -> fairseq's name, for the parts of a layer.
PYTORCH_NAMES = {
    "encoder": {"linear1": "fc1", "linear2": "fc2", "norm1": "self_attn_layer_norm", "norm2": "final_layer_norm"},
    "decoder": {
        "multihead_attn": "encoder_attn",
        "linear1": "fc1",
        "linear2": "fc2",
        "norm1": "self_attn_layer_norm",
        "norm2": "encoder_attn_layer_norm",
        "norm3": "final_layer_norm",
    },
}


class Reference(nn.Module):
    """fairseq's Transformer as its documentation describes it, written with PyTorch's layers."""

    def __init__(self, *, is_tied: bool = True):
        super().__init__()
        sizes = {"d_model": D, "nhead": HEADS, "dim_feedforward": D_FF, "dropout": 0.0, "batch_first": True}
        self.encoder = nn.ModuleList(nn.TransformerEncoderLayer(**sizes) for _ in range(ENCODER_LAYERS))
        self.decoder = nn.ModuleList(nn.TransformerDecoderLayer(**sizes) for _ in range(DECODER_LAYERS))
        self.source, self.target, self.projection = (nn.Parameter(torch.zeros(VOCAB_SIZE, D)) for _ in range(3))
        if is_tied:
            self.target = self.projection = self.source
        with torch.no_grad():  # biases of 0 and weights of norms of 1 would hide mistakes
            for parameter in self.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.3)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Return logits (B, T, V) from token ids (B, S) and (B, T)."""
        is_padding = source == PAD
        x = embed(self.source, source)
        for layer in self.encoder:
            x = layer(x, src_key_padding_mask=is_padding)
        future = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1)
        y = embed(self.target, target)
        for layer in self.decoder:
            y = layer(y, x, tgt_mask=future, memory_key_padding_mask=is_padding)
        return y @ self.projection.T

    def checkpoint_weights(self, *, version: str = "newest") -> dict[str, torch.Tensor]:
        """Return the weights with the names that a checkpoint of fairseq gives them.

        Args:
            version: "newest", "older" or "oldest", because fairseq has changed the names twice.
        """
        weights = {"encoder.embed_tokens.weight": self.source, "decoder.embed_tokens.weight": self.target}
        if version == "newest":
            weights["decoder.output_projection.weight"] = self.projection
        else:
            weights["encoder.version"] = weights["decoder.version"] = torch.tensor([2.0])
            weights["encoder.embed_positions._float_tensor"] = torch.zeros(1)
            if self.projection is not self.target:
                weights["decoder.embed_out"] = self.projection
        for stack, names in PYTORCH_NAMES.items():
            norms = [name for name in names.values() if name.endswith("norm")]
            for name, weight in getattr(self, stack).state_dict().items():
                number, module, *rest = name.split(".")
                module = names.get(module, module)
                if version == "oldest" and module in norms:
                    module = f"layer_norms.{norms.index(module)}"
                prefix = f"{stack}.layers.{number}.{module}."
                if version == "newest" and rest[-1].startswith("in_proj_"):
                    for letter, part in zip("qkv", weight.chunk(3), strict=True):
                        weights[f"{prefix}{letter}_proj.{rest[-1].removeprefix('in_proj_')}"] = part.clone()
                else:
                    weights[prefix + ".".join(rest)] = weight
        return {name: weight.detach() for name, weight in weights.items()}


def embed(matrix: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Return embeddings times sqrt(d_model) plus encodings of positions.

    The first word has position 2, even if padding precedes it.
    """
    embedded = matrix[ids] * math.sqrt(D)
    for row, sentence in enumerate(ids.tolist()):
        position = PAD
        for place, token in enumerate(sentence):
            if token == PAD:
                continue
            position += 1
            angles = position * 10000 ** (-torch.arange(D // 2) / (D // 2 - 1))
            embedded[row, place] += torch.cat([angles.sin(), angles.cos()])
    return embedded


@pytest.fixture
def reference():
    torch.manual_seed(0)
    return Reference().eval()


@pytest.fixture
def write_checkpoint(tmp_path, reference):
    """Return a function that writes a checkpoint and its dictionaries, and returns the checkpoint's path."""

    def write(content=None, *, pieces=PIECES):
        folder = tmp_path / "fairseq"
        folder.mkdir(exist_ok=True)
        for language in ("de", "en"):
            write_lines(folder / f"dict.{language}.txt", [f"{piece} 1" for piece in pieces])
        if content is None:
            content = {"args": Namespace(**SETTINGS), "model": reference.checkpoint_weights()}
        torch.save(content, folder / "model.pt")
        return folder / "model.pt"

    return write


@torch.no_grad()
@pytest.mark.parametrize(
    ("version", "is_tied"), [("newest", True), ("newest", False), ("older", False), ("oldest", True)]
)
def test_a_converted_model_computes_the_logits_of_the_reference_in_plain_pytorch(version, is_tied):
    torch.manual_seed(0)
    reference = Reference(is_tied=is_tied).eval()
    weights = reference.checkpoint_weights(version=version)
    model = fairseq.from_fairseq(weights, SETTINGS)
    target = torch.tensor([[EOS, 4, 5, 6], [EOS, 7, 8, 9], [EOS, 4, 4, 4]])
    expected = reference(SOURCE, target)
    assert expected.std() > 0.5
    assert_close(model(SOURCE, decoder_input_ids=target).logits, expected, tolerance=2e-5)
    assert (model.config.tie_word_embeddings, model.config.dropout) == (is_tied, 0.3)
    half = {name: weight.half() for name, weight in weights.items()}
    assert fairseq.from_fairseq(half, SETTINGS).dtype == torch.float16


@torch.no_grad()
def test_greedy_translations_equal_those_of_a_plain_search_and_every_translation_has_a_word(reference):
    model = fairseq.from_fairseq(reference.checkpoint_weights(), SETTINGS)
    expected = torch.full((len(SOURCE), 1), EOS)
    for step in range(7):
        logits = reference(SOURCE, expected)[:, -1]
        logits[:, PAD] = -torch.inf
        if step == 0:
            logits[:, EOS] = -torch.inf
        is_over = (expected[:, 1:] == EOS).any(dim=1)
        expected = torch.cat([expected, logits.argmax(dim=-1).masked_fill(is_over, PAD)[:, None]], dim=1)
    # A hypothesis that is cut at the limit ends with </s>, so the last token is not compared.
    actual = model.generate(SOURCE, num_beams=1, max_new_tokens=8)
    assert actual[:, :8].tolist() == expected[:, : actual.shape[1]].tolist()
    # Even if a large bias favours </s>, a translation has at least one word, as in fairseq.
    for num_beams in (1, 5):
        found = model.generate(SOURCE, num_beams=num_beams, max_new_tokens=8, sequence_bias=[[[EOS], 100.0]])
        assert found.tolist() == [[EOS, word, EOS] for word in found[:, 1].tolist() if word != EOS]


def test_a_converted_checkpoint_translates(write_checkpoint, reference, tmp_path):
    # Newer checkpoints hold their settings in `cfg` instead of `args`.
    path = write_checkpoint({"args": None, "cfg": {"model": SETTINGS}, "model": reference.checkpoint_weights()})
    vaswani(f"convert --from fairseq --model {path} --output {tmp_path}/ours")
    model, tokenizer = load_translator(tmp_path / "ours")
    inputs = tokenizer(["ein klein@@ er Hund"], return_tensors="pt")
    assert inputs["input_ids"].tolist() == [[4, 5, 6, 7, EOS]]
    target = torch.tensor([[EOS, 4, 5]])
    with torch.no_grad():
        logits = model(**inputs, decoder_input_ids=target).logits
    assert_close(logits, reference(inputs["input_ids"], target).detach(), tolerance=2e-5)
    search = model.generation_config
    assert (search.num_beams, search.length_penalty_type, search.early_stopping) == (5, "power", True)
    assert (search.length_penalty, search.max_new_tokens) == (1.0, 201)
    assert PAD not in model.generate(**inputs, max_new_tokens=10)[0, 1:].tolist()


@pytest.mark.parametrize(
    ("settings", "weights", "message"),
    [
        ({"encoder_normalize_before": True, "no_scale_embedding": True}, {}, "encoder_normalize_before=True, no_scale"),
        ({"decoder_attention_heads": 6}, {}, "encoder_attention_heads and decoder_attention_heads differ"),
        ({}, {"encoder.embed_positions.weight": torch.ones(D)}, r"Unexpected key.*encoder\.embed_positions\.weight"),
        ({}, {"encoder.layers.1.fc2.bias": None}, r"Missing key\(s\) .*encoder\.layers\.1\.feed_forward\.fc2\.bias"),
    ],
)
def test_a_checkpoint_of_another_architecture_is_refused(reference, settings, weights, message):
    weights = reference.checkpoint_weights() | weights
    weights = {name: weight for name, weight in weights.items() if weight is not None}
    with pytest.raises(ValueError, match=message):
        fairseq.from_fairseq(weights, SETTINGS | settings)


def test_a_file_that_is_no_checkpoint_is_refused_and_not_executed(write_checkpoint, tmp_path, error_of):
    hostile = {"args": Namespace(**SETTINGS), "model": {}, "extra_state": Program()}
    for content, message in (
        (hostile, "more than tensors and plain values. Other objects are not loaded, because they may run code"),
        ([1], "is no Transformer of fairseq: AttributeError"),
        ({"args": Namespace(**SETTINGS), "model": {"encoder": [1]}}, "is no Transformer of fairseq: KeyError"),
    ):
        path = write_checkpoint(content)
        error = error_of(f"convert --from fairseq --model {path} --output {tmp_path}/ours")
        assert message in error
        assert error.count("\n") == 1


def test_dictionaries_that_are_damaged_or_do_not_fit_the_model_are_refused(write_checkpoint, tmp_path):
    path = write_checkpoint(pieces=PIECES[:-1])
    folder = path.parent
    for text, message in (
        (None, "has 13 embeddings, but the dictionaries beside it have 12 words"),
        ("anders 1\n", r"dict\.de\.txt, .*dict\.en\.txt differ, but .*--joined-dictionary"),
        ("Hund 3\nläuft\n", "line 2: expected a word, a space and a count, got 'läuft'"),
        ("Hund drei\n", "line 1: expected a word, a space and a count, got 'Hund drei'"),
        ("Hund 3\nHund 2\n", "'Hund' occurs twice"),
        ("</s> 3\n", "'</s>' occurs twice"),
    ):
        if text is not None:
            (folder / "dict.de.txt").write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match=message):
            fairseq.import_model(str(path), tmp_path / "ours")
    for file in folder.glob("dict.*.txt"):
        file.unlink()
    with pytest.raises(FileNotFoundError, match=r"holds no dict\.\*\.txt"):
        fairseq.import_model(str(path), tmp_path / "ours")


def test_the_tokenizer_reads_and_writes_text_as_fairseq_does(tmp_path):
    write_lines(tmp_path / "dict.txt", [f"{piece} 1" for piece in PIECES])
    words = read_dictionary(tmp_path / "dict.txt")
    assert words == ["<s>", "<pad>", "</s>", "<unk>", *PIECES]
    tokenizer = build_tokenizer(words)
    # The texts have unknown words, a last word that ends in @@, and a word that contains the characters of </s>.
    for text in ("ein klein@@ er Hund .", "Katze Hund x@@", "a</s>b @@ ein", "  ein\tHund  "):
        ids = tokenizer(text).input_ids
        assert ids == [words.index(word) if word in words else 3 for word in text.split()] + [EOS]
        known = " ".join(words[token_id] for token_id in ids[:-1] if token_id != 3)
        assert tokenizer.decode(ids, skip_special_tokens=True) == f"{known} ".replace("@@ ", "").rstrip()
