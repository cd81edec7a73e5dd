"""Exported models translate as the model does, in CTranslate2 and in onnxruntime."""

import copy
import io
import re
import sys
from contextlib import chdir
from pathlib import Path

import ctranslate2
import onnxruntime
import pytest
import torch
from ctranslate2.converters import TransformersConverter
from transformers import GenerationConfig

from vaswani_transformer import cli, train_tokenizer
from vaswani_transformer.export import ctranslate2_converter, ctranslate2_translation, onnx_export
from vaswani_transformer.export.ctranslate2_translation import CTranslate2Translator, rescore_hypotheses
from vaswani_transformer.loading import load_tokenizer
from vaswani_transformer.model.beam_search_vaswani import gnmt_length_penalty

SENTENCES = ["a dog runs", "the old cat sleeps on the roof", "two", "who sees the dog", "cats and dogs and cats"]
# All fields of the config that change what is computed, away from the paper's.
OTHER_FIELDS = {
    "attention_bias": True,
    "output_bias": True,
    "tie_word_embeddings": False,
    "activation_function": "gelu",
    "position_embedding_type": "learned",
    "layer_norm_eps": 1e-2,
    "d_k": 7,
    "d_v": 2,
}


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(SENTENCES * 3, vocab_size=280)


@pytest.fixture(scope="module")
def build_model(build_tiny_model, tokenizer):
    """A function that builds a random model with more embeddings than tokens, as after padding to a multiple."""

    def build(**changes):
        sizes = {"vocab_size": len(tokenizer) + 3, "encoder_layers": 1, "decoder_layers": 2}
        return build_tiny_model(noise=0.1, **sizes | changes)

    return build


@pytest.fixture(scope="module")
def half_trained_model(build_model, tokenizer):
    """A model that has learnt a little: its sentences end, and the penalty decides which is best."""
    model = build_model(output_bias=True)
    inputs = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    labels = tokenizer(SENTENCES[::-1], padding=True, return_tensors="pt").input_ids
    labels = labels.masked_fill(labels == tokenizer.pad_token_id, -100)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(40):
        optimizer.zero_grad()
        model(**inputs, labels=labels).loss.backward()
        optimizer.step()
    return model


def export_ctranslate2(model, tokenizer, folder: Path, **options) -> CTranslate2Translator:
    ctranslate2_converter.export_model(model, tokenizer, folder, **options)
    return CTranslate2Translator(folder, intra_threads=1)


def translate_ids(translator: CTranslate2Translator, sentences: list[str], **options) -> list[list[list[int]]]:
    """Token ids of all hypotheses of each sentence by CTranslate2, </s> included."""
    tokenizer = translator.tokenizer
    sources = [tokenizer.convert_ids_to_tokens(tokenizer(sentence).input_ids) for sentence in sentences]
    results = translator.translator.translate_batch(sources, return_end_token=True, min_decoding_length=0, **options)
    return [[tokenizer.convert_tokens_to_ids(tokens) for tokens in result.hypotheses] for result in results]


def generate_ids(model, tokenizer, sentences: list[str], **options) -> tuple[list[list[int]], list[float] | None]:
    """Token ids and scores of our best hypothesis of each sentence, </s> included."""
    inputs = tokenizer(sentences, padding=True, return_tensors="pt")
    outputs = model.generate(**inputs, return_dict_in_generate=True, output_scores=True, **options)
    eos, rows = model.config.eos_token_id, [row[1:].tolist() for row in outputs.sequences]
    scores = outputs.sequences_scores.tolist() if "sequences_scores" in outputs else None
    return [row[: row.index(eos) + 1] if eos in row else row for row in rows], scores


@pytest.mark.parametrize("changes", [{}, {"position_layout": "concatenated", "d_v": 4}, OTHER_FIELDS])
def test_ctranslate2_searches_greedily_as_the_model_does(build_model, tokenizer, tmp_path, changes):
    model = build_model(**changes)
    translator = export_ctranslate2(model, tokenizer, tmp_path)
    theirs = translate_ids(translator, SENTENCES, beam_size=1, max_decoding_length=25)
    ours, _ = generate_ids(model, tokenizer, SENTENCES, num_beams=1, max_new_tokens=25, max_length_offset=None)
    assert [hypotheses[0] for hypotheses in theirs] == ours


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_ctranslate2_finds_what_the_model_finds_under_its_penalty(half_trained_model, tokenizer, tmp_path, alpha):
    translator = export_ctranslate2(half_trained_model, tokenizer, tmp_path)
    options = {"beam_size": 4, "length_penalty": alpha, "max_decoding_length": 60}
    theirs = translate_ids(translator, SENTENCES, **options)
    # A search ends with num_beams finished hypotheses, or when none can win.
    options = {"length_penalty": alpha, "length_penalty_type": "power", "early_stopping": True if alpha else "never"}
    ours, _ = generate_ids(half_trained_model, tokenizer, SENTENCES, num_beams=4, max_new_tokens=60, **options)
    assert [hypotheses[0] for hypotheses in theirs] == ours
    assert len({len(tokens) for tokens in ours}) > 1


def test_rescored_hypotheses_have_the_scores_and_the_order_of_the_papers_search(
    half_trained_model, tokenizer, tmp_path
):
    translator = export_ctranslate2(half_trained_model, tokenizer, tmp_path)
    sources = [tokenizer.convert_ids_to_tokens(tokenizer(sentence).input_ids) for sentence in SENTENCES]
    results = translator.translator.translate_batch(
        sources,
        beam_size=8,
        patience=2,  # or the best is not among them: the paper's search goes on longer
        num_hypotheses=16,
        length_penalty=0.6,
        return_scores=True,
        return_end_token=True,
        min_decoding_length=0,
        max_decoding_length=60,
    )
    ours, scores = generate_ids(half_trained_model, tokenizer, SENTENCES, num_beams=8, length_penalty=0.6)
    for result, tokens, score in zip(results, ours, scores, strict=True):
        best, best_score = rescore_hypotheses(
            result.hypotheses, result.scores, alpha=0.6, length_penalty=gnmt_length_penalty
        )[0]
        assert tokenizer.convert_tokens_to_ids(best) == tokens
        assert best_score == pytest.approx(score, abs=1e-4)


def test_text_goes_in_and_comes_out_line_for_line_in_python_and_at_the_command_line(
    half_trained_model, tokenizer, tmp_path, monkeypatch
):
    translator = export_ctranslate2(half_trained_model, tokenizer, tmp_path)
    lines = ["two", "", SENTENCES[1], "  "]
    ours, _ = generate_ids(half_trained_model, tokenizer, ["two", SENTENCES[1]])
    texts = [text.replace("\n", " ") for text in tokenizer.batch_decode(ours, skip_special_tokens=True)]
    assert translator.translate(lines, rescore=True) == [texts[0], "", texts[1], ""]
    assert translator.translate(lines, num_beams=1, rescore=True) == translator.translate(lines, num_beams=1)
    for rescore in (True, False):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\n".join(SENTENCES).encode())))
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO()))
        assert ctranslate2_translation.main(["--model", str(tmp_path), *(["--rescore"] * rescore)]) == 0
        printed = sys.stdout.buffer.getvalue().decode().splitlines()
        assert printed == translator.translate(SENTENCES, rescore=rescore)


def test_a_sentence_longer_than_the_exported_table_is_refused(half_trained_model, tokenizer, tmp_path):
    translator = export_ctranslate2(half_trained_model, tokenizer, tmp_path, max_positions=20)
    fitting = "dog" + " a" * 17
    assert len(tokenizer(fitting).input_ids) <= 20
    translator.translate([fitting])
    with pytest.raises(ValueError, match=r"longer than the 20 positions of the export.*greater --max_positions"):
        translator.translate(["dog" + " a" * 30])


def test_a_search_as_marian_has_it_is_done_as_far_as_the_engine_can(half_trained_model, tokenizer, tmp_path):
    translator = export_ctranslate2(half_trained_model, tokenizer, tmp_path, max_positions=30)
    translator.generation_config.length_penalty = 1.0
    before = translator.translate(SENTENCES, num_beams=3)
    translator.generation_config = GenerationConfig(num_beams=3, length_penalty_type="power")
    assert translator.translate(SENTENCES) == translator.translate(SENTENCES, rescore=True) == before


def test_the_model_that_is_exported_stays_as_it_was(build_model, tokenizer, tmp_path):
    model, same = build_model(), build_model()
    export_ctranslate2(model, tokenizer, tmp_path, quantization="int8")
    for after, before in zip(model.parameters(), same.parameters(), strict=True):
        assert torch.equal(after, before)


@pytest.mark.parametrize("quantization", ["int8", "bfloat16"])
def test_smaller_weights_make_a_smaller_file_of_like_log_probabilities(
    half_trained_model, tokenizer, tmp_path, quantization
):
    source, target = (tokenizer.convert_ids_to_tokens(tokenizer(text).input_ids) for text in SENTENCES[:2])
    log_probs, sizes = [], []
    for name in ("float32", quantization):
        export_ctranslate2(half_trained_model, tokenizer, tmp_path / name, quantization=name)
        # Multiplied in float32: products of CTranslate2 in int8 saturate on processors without VNNI.
        translator = ctranslate2.Translator(str(tmp_path / name), compute_type="float32")
        log_probs.append(translator.score_batch([source], [target[:-1]])[0].log_probs)
        sizes.append((tmp_path / name / "model.bin").stat().st_size)
    assert sizes[1] < sizes[0]
    assert log_probs[0] == pytest.approx(log_probs[1], abs=0.2)
    assert log_probs[0] != log_probs[1]


def test_the_converter_of_ctranslate2_knows_our_models(half_trained_model, tokenizer, tmp_path):
    half_trained_model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    TransformersConverter(str(tmp_path / "model")).convert(str(tmp_path / "theirs"))
    export_ctranslate2(half_trained_model, tokenizer, tmp_path / "ours")
    theirs, ours = (tmp_path / name / "model.bin" for name in ("theirs", "ours"))
    assert theirs.read_bytes() == ours.read_bytes()
    assert ctranslate2.contains_model(str(tmp_path / "theirs"))


def test_the_command_says_how_the_search_differs_from_the_papers(half_trained_model, tokenizer, tmp_path, capsys):
    model = copy.deepcopy(half_trained_model)
    model.generation_config.no_repeat_ngram_size = 3
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    output = str(tmp_path / "export")
    command = ["export", "--model", str(tmp_path / "model"), "--format", "ctranslate2", "--quantization", "int8"]
    assert cli.main([*command, "--output", output]) == 0
    printed = capsys.readouterr().out
    assert f"--model {output} --rescore" in printed
    [settings] = [line for line in printed.split("\n") if line.startswith("The search this model is set to: ")]
    for setting in ("num_beams=4", "length_penalty=0.6", "max_length_offset=50", "no_repeat_ngram_size=3"):
        assert setting in settings
    assert "_id=" not in settings
    assert len(CTranslate2Translator(output).translate(SENTENCES)) == len(SENTENCES)


GRAPHS = ("encoder_model", "decoder_model", "decoder_with_past_model")
ONNX_MODELS = {"plain": {}, "window": {"attention_window": 3, "position_embedding_type": "learned"}}


@pytest.fixture(scope="module", params=ONNX_MODELS)
def onnx_model(request, build_model, tokenizer, tmp_path_factory):
    """A model and the folder of its graphs, which take half a minute to write."""
    model = build_model(**ONNX_MODELS[request.param])
    folder = tmp_path_factory.mktemp("onnx")
    onnx_export.export_model(model, tokenizer, folder)
    return model, folder


@torch.no_grad()
@pytest.mark.slow
@pytest.mark.parametrize(
    "sentences", [SENTENCES, ["two"], [" ".join(SENTENCES * 4), "two", "a dog runs"]], ids=["batch", "one", "long"]
)
def test_onnx_steps_give_the_logits_of_the_model(onnx_model, tokenizer, sentences):
    model, folder = onnx_model
    inputs = tokenizer(sentences, padding=True, return_tensors="pt")
    encoder, step, later_step = (onnxruntime.InferenceSession(folder / f"{name}.onnx") for name in GRAPHS)
    cache = {"encoder_hidden_states": encoder.run(None, {name: ids.numpy() for name, ids in inputs.items()})[0]}
    tokens, logits = torch.full((len(sentences), 1), model.config.decoder_start_token_id), []
    for _ in range(12):
        given = {"input_ids": tokens[:, -1:].numpy(), "encoder_attention_mask": inputs.attention_mask.numpy(), **cache}
        names = [output.name.replace("present", "past_key_values") for output in step.get_outputs()]
        found = dict(zip(names, step.run(None, given), strict=True))
        logits.append(torch.from_numpy(found.pop("logits")))
        tokens = torch.cat([tokens, logits[-1].argmax(dim=-1)], dim=1)
        cache, step = cache | found, later_step
        cache.pop("encoder_hidden_states", None)
    expected = model(**inputs, decoder_input_ids=tokens[:, :-1]).logits
    torch.testing.assert_close(torch.cat(logits, dim=1), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.slow
def test_the_search_in_the_readme_finds_what_greedy_search_of_the_model_finds(onnx_model, tokenizer, tmp_path, capsys):
    model, folder = onnx_model
    readme = Path(onnx_export.__file__).with_name("README.md").read_text(encoding="utf-8")
    [block] = re.findall(r"```py\n(.*?)```", readme, re.DOTALL)
    (tmp_path / "exports").mkdir()
    (tmp_path / "exports" / "mine_onnx").symlink_to(folder)
    values = {}
    with chdir(tmp_path):
        exec(block, values)
    expected = model.generate(**tokenizer("A dog runs.", return_tensors="pt"), num_beams=1, max_new_tokens=60)[0]
    assert len(values["tokens"]) > 5
    assert values["tokens"] == expected.tolist()[: len(values["tokens"])]
    assert capsys.readouterr().out == tokenizer.decode(values["tokens"], skip_special_tokens=True) + "\n"


@pytest.mark.slow
def test_onnx_has_the_names_of_optimum_and_all_that_a_search_needs(onnx_model, tokenizer):
    model, folder = onnx_model
    sessions = [onnxruntime.InferenceSession(folder / f"{name}.onnx") for name in GRAPHS]
    names = [
        ([tensor.name for tensor in session.get_inputs()], [tensor.name for tensor in session.get_outputs()])
        for session in sessions
    ]
    kinds = ("key", "value")
    pairs = [f"{layer}.{side}.{kind}" for layer in (0, 1) for side in ("decoder", "encoder") for kind in kinds]
    assert names == [
        (["input_ids", "attention_mask"], ["last_hidden_state"]),
        (
            ["encoder_attention_mask", "input_ids", "encoder_hidden_states"],
            ["logits", *(f"present.{pair}" for pair in pairs)],
        ),
        (
            ["encoder_attention_mask", "input_ids", *(f"past_key_values.{pair}" for pair in pairs)],
            ["logits", *(f"present.{pair}" for pair in pairs if "decoder" in pair)],
        ),
    ]
    assert load_tokenizer(folder).get_vocab() == tokenizer.get_vocab()
    assert GenerationConfig.from_pretrained(folder).to_diff_dict() == model.generation_config.to_diff_dict()
