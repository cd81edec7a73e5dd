"""`pipeline("translation")` translates with models of transformers, such as T5, as transformers v4 documented it."""

import io
import json

import pytest
import sentencepiece
import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    M2M100Config,
    M2M100Tokenizer,
    MarianConfig,
    MarianTokenizer,
    MBart50Tokenizer,
    MBartConfig,
    NllbTokenizer,
    PreTrainedTokenizerFast,
    T5Config,
    T5Tokenizer,
)

import vaswani_transformer  # noqa: F401 - the import registers the task

SENTENCES = ["the dog runs", "a cat sleeps on the bed", "where do you live ?"]
SIZES = {
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "max_position_embeddings": 64,
}
T5_PREFIX = "translate English to German: "
T5_SEARCH = {"num_beams": 3, "max_length": 9}


@pytest.fixture(scope="module")
def pieces(tmp_path_factory):
    """Return a folder with the files of a sentencepiece model, and the list of its (piece, score)."""
    model = io.BytesIO()
    lines = iter([*SENTENCES, *T5_PREFIX.split()] * 20)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=lines, model_writer=model, vocab_size=60, minloglevel=2, hard_vocab_limit=False
    )
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    scores = [(processor.id_to_piece(i), processor.get_score(i)) for i in range(3, processor.get_piece_size())]
    folder = tmp_path_factory.mktemp("pieces")
    for name in ("source.spm", "target.spm"):
        (folder / name).write_bytes(model.getvalue())
    unigrams = [(name, 0.0) for name in ("<s>", "<pad>", "</s>", "<unk>")] + scores
    vocabulary = {name: number for number, (name, _) in enumerate(unigrams)}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    return folder, unigrams


def build_tokenizer(kind, folder, unigrams):
    spm, vocab = f"{folder}/source.spm", f"{folder}/vocab.json"
    match kind:
        case "marian":
            return MarianTokenizer(spm, f"{folder}/target.spm", vocab, source_lang="en", target_lang="de")
        case "m2m100":
            return M2M100Tokenizer(vocab, spm)
        case "mbart50":
            return MBart50Tokenizer(vocab=unigrams)
        case "nllb":
            return NllbTokenizer(vocab={name: number for number, (name, _) in enumerate(unigrams)})
        case "t5":
            return T5Tokenizer(vocab=unigrams[1:], extra_ids=0)


def build_model(kind, tokenizer):
    torch.manual_seed(0)
    ids = {
        "vocab_size": 512 if kind == "m2m100" else max(tokenizer.get_vocab().values()) + 1,
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }
    if kind == "t5":
        sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
        tasks = {"translation_en_to_de": T5_SEARCH | {"prefix": T5_PREFIX}}
        config = T5Config(**sizes, **ids, decoder_start_token_id=ids["pad_token_id"], task_specific_params=tasks)
    else:
        kinds = {"marian": MarianConfig, "m2m100": M2M100Config, "nllb": M2M100Config}
        config = kinds.get(kind, MBartConfig)(**SIZES, **ids, decoder_start_token_id=ids["eos_token_id"])
    model = transformers.AutoModelForSeq2SeqLM.from_config(config).eval()
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter), alpha=0.3)
    return model


LANGUAGES = {
    "m2m100": ("en", "de"),
    "mbart50": ("en_XX", "de_DE"),
    "nllb": ("eng_Latn", "deu_Latn"),
}


@pytest.fixture(scope="module", params=["marian", "t5", *LANGUAGES])
def parts(request, pieces):
    tokenizer = build_tokenizer(request.param, *pieces)
    return request.param, build_model(request.param, tokenizer), tokenizer


def expect(parts, sentence, **options):
    """Return the record of each hypothesis that the tokenizer and `generate()` give without a pipeline."""
    kind, model, tokenizer = parts
    if kind in LANGUAGES:
        tokenizer.src_lang = LANGUAGES[kind][0]
        find_id = tokenizer.get_lang_id if kind == "m2m100" else tokenizer.convert_tokens_to_ids
        options["forced_bos_token_id"] = find_id(LANGUAGES[kind][1])
    if kind == "t5":
        sentence, options = T5_PREFIX + sentence, T5_SEARCH | options
    ids = model.generate(**tokenizer(sentence, return_tensors="pt"), **{"num_beams": 4} | options)
    return [to_record(row, tokenizer.decode(row, skip_special_tokens=True), tokenizer) for row in ids]


def to_record(ids, text, tokenizer):
    """Return token ids (without padding) and text in a dictionary, as a pipeline does."""
    return {"translation_token_ids": [i for i in ids.tolist() if i != tokenizer.pad_token_id], "translation_text": text}


def test_the_languages_are_read_from_the_name_of_the_task(parts):
    kind, model, tokenizer = parts
    source, target = LANGUAGES.get(kind, ("en", "de"))
    options = {} if kind == "t5" else {"max_new_tokens": 8}
    translate = transformers.pipeline(f"translation_{source}_to_{target}", model=model, tokenizer=tokenizer, **options)
    assert translate.model is model
    expected = [expect(parts, sentence, **options)[0] for sentence in SENTENCES]
    for batch_size in (1, 3):
        found = translate(SENTENCES, return_tensors=True, return_text=True, batch_size=batch_size)
        assert [to_record(*record.values(), tokenizer) for record in found] == expected
    assert translate(SENTENCES[0]) == [{"translation_text": expected[0]["translation_text"]}]
    several = translate(SENTENCES[0], num_return_sequences=2, num_beams=2, return_tensors=True, return_text=True)
    expected = expect(parts, SENTENCES[0], num_return_sequences=2, **options | {"num_beams": 2})
    assert [to_record(*record.values(), tokenizer) for record in several] == expected


def test_a_task_without_a_model_and_a_model_without_an_encoder_are_refused(parts):
    with pytest.raises(ValueError, match='give model="folder or Hub id"'):
        transformers.pipeline("translation")
    with pytest.raises(ValueError, match="and GPT2LMHeadModel is none"):
        transformers.pipeline("translation", model=GPT2LMHeadModel(GPT2Config(n_layer=1)), tokenizer=parts[2])


def test_languages_may_be_given_to_the_constructor_or_to_a_call(parts):
    kind, model, tokenizer = parts
    if kind not in LANGUAGES:
        pytest.skip("the tokenizer of this model has no languages")
    source, target = LANGUAGES[kind]
    build = {"task": "translation", "model": model, "tokenizer": tokenizer, "max_new_tokens": 8, "return_tensors": True}
    expected = expect(parts, SENTENCES[0], max_new_tokens=8)[0]["translation_token_ids"]
    languages = {"src_lang": source, "tgt_lang": target}
    translate = transformers.pipeline(**build)
    for found in (transformers.pipeline(**build, **languages)(SENTENCES[0]), translate(SENTENCES[0], **languages)):
        assert found[0]["translation_token_ids"].tolist() == expected
    (other,) = translate(SENTENCES[0], src_lang=target, tgt_lang=source)
    assert other["translation_token_ids"].tolist() != expected
    with pytest.raises(ValueError, match="requires a `src_lang` and a `tgt_lang`"):
        translate(SENTENCES[0])


def test_a_sentence_of_one_token_is_translated():
    words = {"<pad>": 0, "</s>": 1, "hello": 2, "welt": 3}
    backend = Tokenizer(WordLevel(words, unk_token="welt"))  # it adds no </s> to a text
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", eos_token="</s>")
    model = build_model("t5", tokenizer)
    translate = transformers.pipeline("translation", model=model, tokenizer=tokenizer, max_new_tokens=4)
    expected = model.generate(torch.tensor([[2]]), max_new_tokens=4, num_beams=4)
    assert translate("hello") == [{"translation_text": tokenizer.decode(expected[0], skip_special_tokens=True)}]
    assert translate("hello") != translate("")
