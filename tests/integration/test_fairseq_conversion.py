"""Checkpoints of fairseq as ours, beside a plain forward of PyTorch's own Transformer layers."""

import math
import os
import re
from argparse import Namespace

import pytest
import torch
from torch import nn
from transformers import AutoTokenizer

from vaswani_transformer import VaswaniForConditionalGeneration, cli
from vaswani_transformer.conversion import fairseq
from vaswani_transformer.conversion.fairseq_dictionary import build_tokenizer, read_dictionary

D, D_FF, HEADS, ENCODER_LAYERS, DECODER_LAYERS = 12, 20, 3, 2, 3
PIECES = ["ein", "klein@@", "er", "Hund", "läuft", ".", "@@", "x@@", "\u2028"]
VOCAB_SIZE = len(PIECES) + 4
PAD, EOS = 1, 2
SETTINGS = {"encoder_attention_heads": HEADS, "decoder_attention_heads": HEADS, "dropout": 0.3, "arch": "transformer"}
# What PyTorch's layers call the parts of fairseq's.
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
    """fairseq's Transformer in terms of PyTorch's layers, as its documentation describes it."""

    def __init__(self, *, is_tied: bool = True):
        super().__init__()
        sizes = {"d_model": D, "nhead": HEADS, "dim_feedforward": D_FF, "dropout": 0.0, "batch_first": True}
        self.encoder = nn.ModuleList(nn.TransformerEncoderLayer(**sizes) for _ in range(ENCODER_LAYERS))
        self.decoder = nn.ModuleList(nn.TransformerDecoderLayer(**sizes) for _ in range(DECODER_LAYERS))
        self.source, self.target, self.projection = (nn.Parameter(torch.zeros(VOCAB_SIZE, D)) for _ in range(3))
        if is_tied:
            self.target = self.projection = self.source
        with torch.no_grad():  # zeros of biases and ones of norms would hide mistakes
            for parameter in self.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.3)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """(B, S), (B, T) token ids -> logits (B, T, V)."""
        hidden, x = source == PAD, embed(self.source, source)
        for layer in self.encoder:
            x = layer(x, src_key_padding_mask=hidden)
        future = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1)
        y = embed(self.target, target)
        for layer in self.decoder:
            y = layer(y, x, tgt_mask=future, memory_key_padding_mask=hidden)
        return y @ self.projection.T

    def checkpoint_weights(self, *, version: str = "newest") -> dict[str, torch.Tensor]:
        """By the names of fairseq's "newest", "older" and "oldest" checkpoints."""
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
    """Word times sqrt(d_model) plus position; padding has position 1, words those from 2 on, wherever padding is."""
    embedded = matrix[ids] * math.sqrt(D)
    for row, sentence in enumerate(ids.tolist()):
        position = PAD
        for place, token in enumerate(sentence):
            if token == PAD:
                continue
            position += 1
            for i in range(D // 2):
                angle = position * math.exp(-i * math.log(10000) / (D // 2 - 1))
                embedded[row, place, i] += math.sin(angle)
                embedded[row, place, i + D // 2] += math.cos(angle)
    return embedded


@pytest.fixture
def reference():
    torch.manual_seed(0)
    return Reference().eval()


@pytest.fixture
def write_checkpoint(tmp_path, reference):
    """A function that writes a checkpoint and its dictionaries, and returns the checkpoint's path."""

    def write(content=None, *, pieces=PIECES):
        folder = tmp_path / "fairseq"
        folder.mkdir()
        for language in ("de", "en"):
            lines = "".join(f"{piece} {100 - number}\n" for number, piece in enumerate(pieces))
            (folder / f"dict.{language}.txt").write_text(lines, encoding="utf-8")
        if content is None:
            content = {"args": Namespace(**SETTINGS), "model": reference.checkpoint_weights()}
        torch.save(content, folder / "model.pt")
        return folder / "model.pt"

    return write


def padded_sources() -> torch.Tensor:
    """One sentence whole, one padded on the right, one on the left, as fairseq pads."""
    return torch.tensor([[5, 6, 7, 8, EOS], [9, 4, EOS, PAD, PAD], [PAD, PAD, 4, 9, EOS]])


@torch.no_grad()
@pytest.mark.parametrize("version", ["newest", "older", "oldest"])
@pytest.mark.parametrize("is_tied", [True, False])
def test_logits_are_those_of_a_plain_forward(version, is_tied):
    torch.manual_seed(0)
    reference = Reference(is_tied=is_tied).eval()
    model = fairseq.from_fairseq(reference.checkpoint_weights(version=version), SETTINGS)
    source, target = padded_sources(), torch.tensor([[EOS, 4, 5, 6], [EOS, 7, 8, 9], [EOS, 4, 4, 4]])
    expected = reference(source, target)
    assert expected.std() > 0.5
    torch.testing.assert_close(model(source, decoder_input_ids=target).logits, expected, atol=1e-5, rtol=1e-5)
    assert model.config.tie_word_embeddings == is_tied
    assert (model.config.d_ff, model.config.encoder_layers, model.config.decoder_layers) == (D_FF, 2, 3)


@torch.no_grad()
def test_greedy_translations_are_those_of_a_plain_forward(reference):
    model = fairseq.from_fairseq(reference.checkpoint_weights(), SETTINGS)
    source = padded_sources()
    expected = torch.full((len(source), 1), EOS)
    for step in range(8):
        logits = reference(source, expected)[:, -1]
        logits[:, PAD] = -torch.inf
        if step < model.generation_config.min_new_tokens:
            logits[:, EOS] = -torch.inf
        expected = torch.cat([expected, logits.argmax(dim=-1, keepdim=True)], dim=1)
    is_over = (expected[:, 1:] == EOS).long().cumsum(dim=-1) - (expected[:, 1:] == EOS).long() > 0
    expected[:, 1:][is_over] = PAD
    actual = model.generate(source, num_beams=1, max_new_tokens=8)
    # What is cut at the limit ends there with </s>.
    assert actual[:, 1:8].tolist() == expected[:, 1 : actual.shape[1]][:, :7].tolist()


def test_no_translation_is_empty_as_fairseq_has_it(reference):
    model = fairseq.from_fairseq(reference.checkpoint_weights(), SETTINGS)
    for num_beams in (1, 5):
        found = model.generate(padded_sources(), num_beams=num_beams, max_new_tokens=8, sequence_bias=[[[EOS], 100.0]])
        assert (found[:, 1] != EOS).all()
        assert (found[:, 2] == EOS).all()


def test_a_checkpoint_becomes_a_model_that_translates(write_checkpoint, reference, tmp_path, capsys):
    output = tmp_path / "ours"
    assert cli.main(["convert", "--from", "fairseq", "--model", str(write_checkpoint()), "--output", str(output)]) == 0
    assert "fairseq-generate" in capsys.readouterr().out
    model = VaswaniForConditionalGeneration.from_pretrained(output)
    tokenizer = AutoTokenizer.from_pretrained(output)
    inputs = tokenizer(["ein klein@@ er Hund"], return_tensors="pt")
    assert inputs["input_ids"].tolist() == [[4, 5, 6, 7, EOS]]
    target = torch.tensor([[EOS, 4, 5]])
    with torch.no_grad():
        expected = reference(inputs["input_ids"], target)
        torch.testing.assert_close(model(**inputs, decoder_input_ids=target).logits, expected, atol=1e-5, rtol=1e-5)
    found = model.generate(**inputs, max_new_tokens=10)
    assert model.generation_config.num_beams == 5
    assert model.generation_config.length_penalty_type == "power"
    assert PAD not in found[0, 1:].tolist()


def test_newer_checkpoints_say_their_settings_in_cfg(reference):
    weights = reference.checkpoint_weights()
    for model in (Namespace(**SETTINGS), SETTINGS):
        checkpoint = {"args": None, "cfg": {"model": model}, "model": weights}
        assert fairseq.read_settings(checkpoint)["dropout"] == 0.3


def test_half_precision_stays(reference):
    weights = {name: weight.half() for name, weight in reference.checkpoint_weights().items()}
    assert fairseq.from_fairseq(weights, SETTINGS).dtype == torch.float16


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"encoder_normalize_before": True}, r"this model has encoder_normalize_before=True; .*none of it"),
        ({"decoder_learned_pos": True, "no_scale_embedding": True}, r"decoder_learned_pos=True, no_scale_embedding"),
        ({"decoder_attention_heads": 6}, r"encoder_attention_heads and decoder_attention_heads differ"),
    ],
)
def test_another_network_is_refused_by_its_setting(reference, settings, message):
    with pytest.raises(ValueError, match=message):
        fairseq.from_fairseq(reference.checkpoint_weights(), SETTINGS | settings)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"encoder.layer_norm.weight": torch.ones(D)}, r"Unexpected key\(s\) .* \"encoder\.layer_norm\.weight\""),
        ({"encoder.layers.1.fc2.bias": None}, r"Missing key\(s\) .*encoder\.layers\.1\.feed_forward\.fc2\.bias"),
        (
            {"decoder.layers.0.fc1.weight": torch.ones(7, D)},
            r"size mismatch for .*decoder\.layers\.0\.feed_forward\.fc1\.weight",
        ),
    ],
)
def test_weights_of_another_network_are_refused_by_name(reference, change, message):
    weights = reference.checkpoint_weights() | change
    weights = {name: weight for name, weight in weights.items() if weight is not None}
    with pytest.raises(ValueError, match=message):
        fairseq.from_fairseq(weights, SETTINGS)


class Hostile:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_a_checkpoint_that_holds_code_is_refused_and_does_not_run(write_checkpoint, tmp_path):
    path = write_checkpoint({"args": Namespace(**SETTINGS), "model": {}, "extra_state": Hostile(tmp_path / "ran")})
    with pytest.raises(ValueError, match=r"plain values and argparse\.Namespace.*may run code"):
        fairseq.load_checkpoint(path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"PK", r"model\.pt was not loaded: it is damaged"),
        ([1], "is no Transformer of fairseq: TypeError"),
        ({"args": Namespace(**SETTINGS)}, "is no Transformer of fairseq: KeyError 'model'"),
        ({"args": Namespace(**SETTINGS), "model": {"encoder": [1]}}, "is no Transformer of fairseq: KeyError"),
        ({"args": Namespace(dropout=0.1), "model": {}}, "is no Transformer of fairseq: KeyError"),
    ],
)
def test_what_is_no_checkpoint_is_refused_in_one_line(write_checkpoint, tmp_path, capsys, content, message):
    path = write_checkpoint(content)
    if isinstance(content, bytes):
        path.write_bytes(content)
    assert cli.main(["convert", "--from", "fairseq", "--model", str(path), "--output", str(tmp_path / "ours")]) == 1
    error = capsys.readouterr().err
    assert re.search(message, error)
    assert error.count("\n") == 1


def test_dictionaries_must_be_those_of_the_model(write_checkpoint, tmp_path):
    path = write_checkpoint(pieces=PIECES[:-1])
    with pytest.raises(ValueError, match=r"embeddings of 13 words, the dictionaries beside it have 12"):
        fairseq.import_model(str(path), tmp_path / "ours")
    (path.parent / "dict.de.txt").write_text("anders 1\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"dict\.de\.txt, .*dict\.en\.txt differ: .*--joined-dictionary"):
        fairseq.import_model(str(path), tmp_path / "ours")
    for file in path.parent.glob("dict.*.txt"):
        file.unlink()
    with pytest.raises(FileNotFoundError, match=r"holds no dict\.\*\.txt"):
        fairseq.import_model(str(path), tmp_path / "ours")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Hund 3\nläuft\n", r"line 2: expected a word, a space and a count, got 'läuft'"),
        ("Hund 3\nHund 2\n", r"line 2: 'Hund' is there twice"),
        ("</s> 3\n", r"line 1: '</s>' is there twice"),
        ("Hund 1\n</s> 3 #fairseq:overwrite\n", r"line 2: '</s>' is there twice"),
        ("Hund 3\nl\udce4uft 2\n", r"dict\.txt, line 2: not UTF-8"),
    ],
)
def test_a_wrong_dictionary_is_refused_with_its_line(tmp_path, text, message):
    (tmp_path / "dict.txt").write_text(text, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(ValueError, match=message):
        read_dictionary(tmp_path / "dict.txt")


def test_a_word_that_overwrites_has_an_id_of_its_own_at_its_place(tmp_path):
    lines = ["Hund 9", "läuft 8", "Hund 7 #fairseq:overwrite", "er 6", "Hund 5 #fairseq:overwrite"]
    (tmp_path / "dict.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    words = read_dictionary(tmp_path / "dict.txt")
    assert len(set(words)) == len(words) == 9
    tokenizer = build_tokenizer(words)
    assert tokenizer("läuft er Hund").input_ids == [5, 7, 8, EOS]
    assert tokenizer("Hund 4 Hund 6").input_ids == [8, 3, 8, 3, EOS]


def test_the_tokenizer_reads_and_writes_text_as_fairseq_does(tmp_path):
    (tmp_path / "dict.txt").write_text("".join(f"{piece} 1\n" for piece in PIECES), encoding="utf-8")
    words = read_dictionary(tmp_path / "dict.txt")
    assert words == ["<s>", "<pad>", "</s>", "<unk>", *PIECES]
    tokenizer = build_tokenizer(words)
    # Unknown words, pieces at the end, and what looks like a special token but is part of a word.
    for text in ("ein klein@@ er Hund .", "Katze Hund x@@", "a</s>b @@ ein", "  ein\tHund  "):
        ids = tokenizer(text).input_ids
        assert ids == [words.index(word) if word in words else 3 for word in text.split()] + [EOS]
        known = " ".join(words[token_id] for token_id in ids[:-1] if token_id != 3)
        assert tokenizer.decode(ids, skip_special_tokens=True) == f"{known} ".replace("@@ ", "").rstrip()
