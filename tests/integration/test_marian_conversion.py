"""A model converted from MarianMT or to MarianMT computes and translates the same as the original."""

import io
import json
import re
import shutil

import pytest
import sentencepiece
import torch
from shortcuts import Program, change_json
from tiny_training import assert_close
from transformers import AutoTokenizer, GenerationConfig, MarianConfig, MarianMTModel, MarianTokenizer

from vaswani_transformer import VaswaniForConditionalGeneration
from vaswani_transformer.conversion import marian as conversion
from vaswani_transformer.data.phrasebook.pairs import generate_pairs
from vaswani_transformer.translation.pipeline import TranslationPipeline
from vaswani_transformer.translation.translator import translate

SHAPES = {
    "opus": {"activation_function": "swish", "decoder_layers": 1},
    "not_scaled": {"scale_embedding": False, "activation_function": "gelu"},
    "not_tied": {"tie_word_embeddings": False},
    "not_shared": {"share_encoder_decoder_embeddings": False},
}


@pytest.fixture(scope="module")
def build_marian_model():
    """Return a function that builds a tiny MarianMTModel like those of OPUS-MT. No bias is 0, no norm weight is 1."""

    def build(*, vocab_size: int = 37, **changes) -> MarianMTModel:
        torch.manual_seed(0)
        pad = vocab_size - 1
        options = {
            "vocab_size": vocab_size,
            "d_model": 24,
            "encoder_layers": 2,
            "decoder_layers": 3,
            "encoder_ffn_dim": 40,
            "decoder_ffn_dim": 40,
            "encoder_attention_heads": 3,
            "decoder_attention_heads": 3,
            "activation_function": "relu",
            "scale_embedding": True,
            "max_position_embeddings": 64,
        }
        token_ids = {"pad_token_id": pad, "decoder_start_token_id": pad, "eos_token_id": 0, "bos_token_id": 0}
        model = MarianMTModel(MarianConfig(**options | token_ids | changes)).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:  # all but the table of positions
                    parameter.add_(torch.randn_like(parameter), alpha=0.3)
            model.final_logits_bias.normal_()
        search = {"num_beams": 4, "max_length": 16, "forced_eos_token_id": 0, "renormalize_logits": True}
        model.generation_config = GenerationConfig(**search, bad_words_ids=[[pad]], **token_ids)
        return model

    return build


@pytest.fixture(scope="module")
def marian_folder(build_marian_model, tmp_path_factory):
    """Return a folder with a MarianMT model and its two sentencepiece models, with the file names of OPUS-MT."""
    folder = tmp_path_factory.mktemp("marian")
    pairs = list(generate_pairs(split="train", num_pairs=300))
    vocabulary = {"</s>": 0, "<unk>": 1}
    for side, name in enumerate(("source", "target")):
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([pair[side] for pair in pairs]), model_writer=model, vocab_size=90, minloglevel=2
        )
        (folder / f"{name}.spm").write_bytes(model.getvalue())
        processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
        for number in range(processor.get_piece_size()):
            vocabulary.setdefault(processor.id_to_piece(number), len(vocabulary))
    vocabulary["<pad>"] = len(vocabulary)
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "tokenizer_config.json").write_text('{"source_lang": "en", "target_lang": "de"}')
    build_marian_model(vocab_size=len(vocabulary)).save_pretrained(folder)
    # With this field, transformers marks options that it has taken from the config of the model.
    change_json(folder / "generation_config.json", _from_model_config=True)
    return folder


def draw_batch() -> dict[str, torch.Tensor]:
    """Return the inputs of three sentences without special tokens, two of them padded."""
    generator = torch.Generator().manual_seed(1)
    input_ids = torch.randint(2, 36, (3, 9), generator=generator)
    attention_mask = torch.arange(9) < torch.tensor([[9], [7], [3]])
    return {
        "input_ids": input_ids.masked_fill(~attention_mask, 36),
        "attention_mask": attention_mask.long(),
    }


@torch.no_grad()
@pytest.mark.parametrize("shape", SHAPES)
def test_a_converted_model_gives_the_logits_and_translations_of_marian(build_marian_model, shape):
    marian = build_marian_model(**SHAPES[shape])
    model = conversion.from_marian(marian)
    batch = draw_batch()
    target = torch.randint(36, (3, 6))
    expected = marian(**batch, decoder_input_ids=target).logits
    assert expected.std() > 1
    assert_close(model(**batch, decoder_input_ids=target).logits, expected, tolerance=1e-5)
    # Our model always scales its input embeddings, so embeddings without scaling cannot be tied to the output.
    assert model.config.tie_word_embeddings == (not shape.startswith("not"))
    lengths = set()
    # No word may come twice, because an untrained model would otherwise repeat one word for ever.
    no_repeat = {"no_repeat_ngram_size": 1}
    for options in ({}, no_repeat | {"num_beams": 1}, no_repeat | {"length_penalty": 2.0, "renormalize_logits": False}):
        expected = marian.generate(**batch, **options)
        assert_close(model.generate(**batch, **options), expected)
        lengths |= set((expected[:, 1:] != 36).sum(dim=-1).tolist())
    assert len(lengths) > 2  # some translations end before the limit, at different lengths


def test_a_marian_model_converted_to_ours_and_back_is_bitwise_equal(build_marian_model):
    marian = build_marian_model()
    back = conversion.to_marian(conversion.from_marian(marian))
    assert_close(back.state_dict(), marian.state_dict())
    assert conversion.search_options(back) == conversion.search_options(marian)


def test_half_precision_is_kept_and_outputs_are_compared_in_float32(marian_folder, tmp_path):
    folder = shutil.copytree(marian_folder, tmp_path / "half")
    output = tmp_path / "ours"
    MarianMTModel.from_pretrained(marian_folder).half().save_pretrained(folder)
    assert float(re.search(r"by (\S+) at most", conversion.import_model(str(folder), output))[1]) < 1e-5
    ours = VaswaniForConditionalGeneration.from_pretrained(output)
    assert ours.dtype == torch.float16
    conversion.export_model(ours, AutoTokenizer.from_pretrained(output), tmp_path / "theirs")
    assert MarianMTModel.from_pretrained(tmp_path / "theirs").dtype == torch.float16


def test_a_model_of_another_type_or_shape_or_with_wrong_weights_is_refused(build_marian_model, tiny_model, tmp_path):
    with pytest.raises(ValueError, match=r"encoder_ffn_dim and decoder_ffn_dim differ \(40, 48\)"):
        conversion.from_marian(build_marian_model(decoder_ffn_dim=48))
    tiny_model.save_pretrained(tmp_path / "tiny")
    with pytest.raises(ValueError, match=r"is a 'vaswani' model by its config\.json: give a MarianMT model"):
        conversion.load_marian(f"{tmp_path}/tiny")
    marian = build_marian_model()
    weights = marian.state_dict()
    lacking = {name: weight for name, weight in weights.items() if not name.endswith("decoder.layers.0.fc1.bias")}
    for given, message in (
        (lacking, r"missing weights: .*fc1\.bias"),
        (weights | {"model.adapter": torch.ones(2)}, r"unexpected weights: model\.adapter"),
    ):
        marian.save_pretrained(tmp_path, state_dict=given)
        with pytest.raises(ValueError, match=message):
            conversion.load_marian(str(tmp_path))


@torch.no_grad()
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"position_layout": "concatenated", "attention_bias": True, "output_bias": True},
        {"tie_word_embeddings": False, "attention_bias": True},
    ],
)
def test_our_model_converted_to_marian_and_back_computes_the_same(build_tiny_model, changes):
    model = build_tiny_model(noise=0.3, d_k=4, d_v=4, layer_norm_eps=1e-5, **changes)
    marian = conversion.to_marian(model)
    back = conversion.from_marian(marian)
    batch = draw_batch()
    target = torch.randint(37, (3, 6))
    expected = model(**batch, decoder_input_ids=target).logits
    for other in (marian, back):
        assert_close(other(**batch, decoder_input_ids=target).logits, expected, tolerance=2e-5)
    assert back.config.tie_word_embeddings == model.config.tie_word_embeddings
    options = {"num_beams": 3, "length_penalty": 0.7, "early_stopping": False, "max_length": 12}
    options["forced_eos_token_id"] = 2  # without it, Marian's translations end at the limit without </s>
    translations = marian.generate(**batch, **options)
    assert_close(model.generate(**batch, **options, length_penalty_type="power", max_length_offset=None), translations)
    assert_close(back.generate(**batch, **options), translations)


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"d_k": 5, "d_v": 7}, "d_k and d_v"),
        ({"attention_window": 3}, "attention_window"),
        ({"position_embedding_type": "learned"}, "position_embedding_type"),
        ({"position_layout": "fairseq"}, "position_layout"),
    ],
)
def test_a_setting_that_marian_does_not_have_is_refused_by_name(build_tiny_model, changes, names):
    with pytest.raises(ValueError, match=f"cannot have the {names} of this model"):
        conversion.to_marian(build_tiny_model(**{"d_k": 4, "d_v": 4} | changes))


def test_the_command_prints_what_marian_computes_differently(build_translator, tmp_path, output_of):
    texts = [text for pair in generate_pairs(split="train", num_pairs=50) for text in pair]
    _, tokenizer = build_translator(texts, folder=tmp_path / "ours")
    printed = output_of(f"convert --to marian --model {tmp_path}/ours --output {tmp_path}/theirs")
    assert "layer_norm_eps is always 1e-05, not 1e-06" in printed
    assert "no length_penalty_type='gnmt', max_length_offset=50" in printed
    marian = MarianMTModel.from_pretrained(tmp_path / "theirs")
    assert marian.generation_config.max_length == 1024
    assert not hasattr(marian.generation_config, "length_penalty_type")
    assert AutoTokenizer.from_pretrained(tmp_path / "theirs")(texts[0]).input_ids == tokenizer(texts[0]).input_ids


@pytest.mark.parametrize("error", [0.1, float("nan")])
def test_a_wrong_conversion_is_noticed_before_files_are_written(build_marian_model, error):
    marian = build_marian_model()
    model = conversion.from_marian(marian)
    with torch.no_grad():
        model.model.decoder.layers[1].cross_attention.v_proj.weight[0] += error
    with pytest.raises(ValueError, match=r"differ by .*, too much for rounding"):
        conversion.compare_logits(model, marian)


def test_a_converted_opus_model_translates_the_same(marian_folder, tmp_path, output_of):
    output = tmp_path / "ours"
    printed = output_of(f"convert --from marian --model {marian_folder} --output {output}")
    assert "Its tokenizer is MarianTokenizer" in printed
    marian = MarianMTModel.from_pretrained(marian_folder)
    theirs = MarianTokenizer.from_pretrained(marian_folder)
    model = VaswaniForConditionalGeneration.from_pretrained(output)
    tokenizer = AutoTokenizer.from_pretrained(output)
    assert "Marian's search" not in output_of(f"convert --to marian --model {output} --output {tmp_path}/again")
    assert model.generation_config.length_penalty_type == "power"
    assert model.generation_config.bad_words_ids == marian.generation_config.bad_words_ids

    pairs = list(generate_pairs(split="test", num_pairs=6))
    sources, targets = ([pair[side] for pair in pairs] for side in (0, 1))
    inputs = theirs(sources, text_target=targets, padding=True, return_tensors="pt")
    assert_close({**tokenizer(sources, text_target=targets, padding=True, return_tensors="pt")}, {**inputs})
    labels = inputs.pop("labels")
    # Source and target have different sentencepiece models, so a target is cut into other pieces than the same source.
    assert labels[0].tolist() != theirs(targets[:1]).input_ids[0]
    assert tokenizer.batch_decode(labels, skip_special_tokens=True) == targets

    tokens = marian.generate(**inputs)
    assert_close(model.generate(**inputs), tokens)
    expected = theirs.batch_decode(tokens, skip_special_tokens=True)
    assert translate(model, tokenizer, sources) == expected
    pipe = TranslationPipeline(model=model, tokenizer=tokenizer)
    assert [found["translation_text"] for found in pipe(sources, batch_size=3)] == expected


@pytest.mark.parametrize("kind", ["a pickle", "code"])
def test_neither_a_pickle_nor_code_in_a_marian_folder_is_run(marian_folder, tmp_path, error_of, kind):
    folder = shutil.copytree(marian_folder, tmp_path / "marian")
    if kind == "a pickle":
        (folder / "model.safetensors").unlink()
        torch.save(Program(), folder / "pytorch_model.bin")
    else:
        (folder / "trap.py").write_text("raise SystemExit")
        trap = {"AutoConfig": "trap.Config", "AutoTokenizer": ["trap.Trap", None]}
        change_json(folder / "config.json", model_type="trap", auto_map=trap)
        change_json(folder / "tokenizer_config.json", tokenizer_class="Trap", auto_map=trap)
    assert error_of(f"convert --from marian --model {folder} --output {tmp_path}/ours").count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["marian"]


def test_marian_tokenizers_that_we_cannot_use_are_refused(marian_folder, tmp_path, error_of, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("train", "dev"):
        (tmp_path / name).write_text(f"the dog runs {name}\n")
    files = "--train train train --dev dev dev --output data"
    error = error_of(f"prepare {files} --keep_vocabulary {marian_folder}")
    assert f"needs a tokenizer with a tokenizer.json, but {marian_folder} has a MarianTokenizer" in error
    folder = shutil.copytree(marian_folder, tmp_path / "separate")
    change_json(folder / "tokenizer_config.json", separate_vocabs=True)
    shutil.copy(folder / "vocab.json", folder / "target_vocab.json")
    with pytest.raises(ValueError, match=r"a vocabulary for each language \(separate_vocabs\)"):
        conversion.import_model(str(folder), tmp_path / "ours")
