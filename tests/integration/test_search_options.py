"""The search that the command line asks for is the one that `generate` does."""

import pytest
import torch

from vaswani_transformer import VaswaniConfig, VaswaniForConditionalGeneration, cli, train_tokenizer
from vaswani_transformer.commands.arguments import read_shortlist
from vaswani_transformer.loading import load_translator
from vaswani_transformer.engine.products import Int8Products
from vaswani_transformer.translation.translator import Translator

SENTENCES = ["the dog runs far away", "the cat and the dog", "cat sleeps", "away runs the dog and the cat"]
TOKENIZER = train_tokenizer(SENTENCES, vocab_size=290)


def save_model(folder, *, seed, tokenizer=TOKENIZER, **sizes):
    torch.manual_seed(seed)
    sizes = {"d_model": 16, "d_ff": 24, "num_heads": 4, "encoder_layers": 1, "decoder_layers": 1} | sizes
    model = VaswaniForConditionalGeneration(VaswaniConfig(vocab_size=290, **sizes))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two models of one vocabulary."""
    folder = tmp_path_factory.mktemp("models")
    return save_model(folder / "one", seed=1), save_model(folder / "other", seed=2, d_model=12)


@pytest.fixture
def files(tmp_path):
    """The text, where its translation goes, and a shortlist."""
    for name, lines in (("text", SENTENCES), ("shortlist", ["dog", "cat runs"])):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    return tmp_path / "text", tmp_path / "out", tmp_path / "shortlist"


def run(command, *arguments):
    return cli.main([command, *map(str, arguments), "--max_length_offset", "3"])


def test_scores_of_an_ensemble_with_a_shortlist_stand_before_the_texts(folders, files):
    text, output, shortlist = files
    options = ["--ensemble", folders[1], "--shortlist", shortlist, "--scores"]
    assert run("translate", "--model", folders[0], *options, "--input", text, "--output", output) == 0
    (one, tokenizer), (other, _) = map(load_translator, folders)
    search = {"max_length_offset": 3, "ensemble": [other], "shortlist": read_shortlist(shortlist, tokenizer)}
    found = Translator(one, tokenizer, with_scores=True, **search)(SENTENCES)
    expected = [f"{hypothesis.score:.4f}\t{hypothesis.text}" for [hypothesis] in found]
    assert output.read_text(encoding="utf-8").split("\n") == [*expected, ""]


def test_a_shortlist_holds_each_token_of_its_text_once(tmp_path):
    path = tmp_path / "words"
    path.write_text("dog\n\nthe dog\nthe\n")
    assert read_shortlist(path, TOKENIZER) == sorted(set(TOKENIZER("the dog").input_ids[:-1]))


@pytest.mark.parametrize("text", ["", "\n\n"])
def test_a_shortlist_without_a_word_is_refused(folders, files, capsys, text):
    files[2].write_text(text)
    assert run("translate", "--model", folders[0], "--input", files[0], "--shortlist", files[2]) == 1
    assert f"{files[2]} holds no word, and nothing could be translated" in capsys.readouterr().err


def test_a_model_of_another_vocabulary_is_refused(folders, files, tmp_path, capsys):
    like = train_tokenizer(["quick brown foxes jump over lazy hens"] * 2, vocab_size=290)
    stranger = save_model(tmp_path / "stranger", seed=3, tokenizer=like)
    assert run("translate", "--model", folders[0], "--ensemble", folders[1], stranger, "--input", files[0]) == 1
    assert (
        f"models of an ensemble must share one vocabulary, and {stranger} has another than {folders[0]}: train them "
        f"on data of one tokenizer" in capsys.readouterr().err
    )


def test_other_models_or_another_shortlist_do_not_go_on(folders, files, monkeypatch, capsys):
    def die(translator, batch):
        raise MemoryError("no room")

    text, output, shortlist = files
    files_given = ["--input", text, "--output", output, "--shortlist", shortlist]
    begun = ["translate", "--model", folders[0], *files_given, "--ensemble", folders[1]]
    with monkeypatch.context() as patch:
        patch.setattr(Translator, "translate", die)
        assert run(*begun) == 1
    assert run(*begun[:-1], folders[0]) == 1
    assert 'other settings: ensemble[0] was "' in capsys.readouterr().err
    shortlist.write_text("dog cat\n")
    assert run(*begun) == 1
    assert 'other settings: shortlist was "' in capsys.readouterr().err
    shortlist.write_text("runs cat dog\n")
    assert run(*begun) == 0  # the same words


def test_a_score_says_which_models_and_words_it_is_of(folders, files, capsys):
    text, _, shortlist = files
    options = ["--ensemble", folders[1], "--shortlist", shortlist, "--num_beams", "2", "--tokenize", "none"]
    assert run("evaluate", "--model", folders[0], "--test", text, text, *options) == 0
    printed = capsys.readouterr().out
    assert f"no label smoothing, {folders[0]} alone\n" in printed
    assert "search num_beams:2|" in printed
    assert f"|shortlist:{shortlist}  model {folders[0]} + {folders[1]}  fingerprint " in printed


@pytest.mark.skipif(not Int8Products.suit(), reason="this PyTorch has no int8 products")
def test_a_model_in_int8_is_searched_and_scored_as_such(folders, files, capsys):
    text, output, _ = files
    options = ["--input", text, "--output", output, "--ensemble", folders[1], "--scores", "--dtype", "int8"]
    assert run("translate", "--model", folders[0], *options) == 0
    (one, tokenizer), (other, _) = map(load_translator, folders)
    search = {"max_length_offset": 3, "ensemble": [other], "dtype": "int8"}
    found = Translator(one, tokenizer, with_scores=True, **search)(SENTENCES)
    expected = "".join(f"{hypothesis.score:.4f}\t{hypothesis.text}\n" for [hypothesis] in found)
    assert output.read_text(encoding="utf-8") == expected
    assert run("evaluate", "--model", folders[0], "--test", text, text, "--dtype", "int8") == 0
    assert "|dtype:int8  model " in capsys.readouterr().out
