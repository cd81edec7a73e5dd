"""Parsing works from end to end: from a treebank to token ids, from a sentence to a tree, and from trees to F1."""

import pytest
from shortcuts import read_json, vaswani, write_lines

from vaswani_transformer import train_tokenizer
from vaswani_transformer.parsing import parser as parser_module
from vaswani_transformer.parsing.linearisation import read_pairs
from vaswani_transformer.parsing.parser import Parser, load_parser, split_words
from vaswani_transformer.parsing.trees import parse_trees, read_trees
from vaswani_transformer.parsing.vocabulary import check_vocabulary, learn_vocabulary

TREEBANK = """
((S (NP-SBJ (DT The) (NN dog)) (VP (VBZ barks)) (. .)))
((S (NP-SBJ (PRP She)) (VP (VBZ sees) (NP (DT the) (NN dog)) (PP (IN in) (NP (NNP Oslo)))) (. .)))
((S (NP-SBJ (NNS Dogs) (, ,) (NNS cats)) (VP (VBP sleep) (NP (-NONE- *))) (. .)))
"""
SENTENCES = ["The dog barks .", "", "She , ( the dog ) sees in Oslo .", "dog"]
# Limits that keep the search short, because an untrained model does not end its output.
SHORT = {"num_beams": 2, "max_length_offset": 12}


@pytest.fixture
def treebank(tmp_path):
    path = tmp_path / "trees.mrg"
    path.write_text(TREEBANK)
    return path


# Without copy_words, the placeholder XX stands for each word of a tree.
@pytest.fixture(params=[False, True], ids=["XX", "words"])
def tokenizer(request, treebank):
    return learn_vocabulary(read_pairs(treebank, copy_words=request.param), vocab_size=310)


@pytest.fixture
def model(build_tiny_model, tokenizer):
    return build_tiny_model(vocab_size=len(tokenizer), noise=0.3)


def test_every_bracket_is_one_token_and_decoding_gives_back_the_sentence(treebank, tokenizer):
    assert len(tokenizer) <= 310
    brackets = {symbol: token_id for symbol, token_id in tokenizer.get_added_vocab().items() if symbol[0] in "()"}
    assert brackets.keys() == {f"{side}{label}" for side in "()" for label in ("S", "NP", "VP", "PP")}
    for copy_words in (False, True):
        for sentence, tree in read_pairs(treebank, copy_words=copy_words):
            found = [token_id for token_id in tokenizer(tree).input_ids if token_id in brackets.values()]
            assert tokenizer.decode(found).split() == [word for word in tree.split() if word[0] in "()"]
            assert tokenizer.decode(tokenizer(tree).input_ids, skip_special_tokens=True) == tree
            assert tokenizer.decode(tokenizer(sentence).input_ids, skip_special_tokens=True) == sentence


def test_a_word_xx_is_not_taken_for_the_placeholder_when_words_are_copied(tmp_path):
    path = tmp_path / "trees.mrg"
    path.write_text("((S (NN XX) (NN dog)))")
    for copy_words in (False, True):
        tokenizer = learn_vocabulary(read_pairs(path, copy_words=copy_words), vocab_size=300)
        assert ("XX" in tokenizer.get_added_vocab()) == (not copy_words)
        check_vocabulary(tokenizer, copy_words=copy_words)
        with pytest.raises(ValueError, match=r"the model's vocabulary is for trees .* --copy_words"):
            check_vocabulary(tokenizer, copy_words=not copy_words)


def test_constrained_search_finds_trees_over_exactly_the_given_words(model, tokenizer):
    parser, free_parser = (Parser(model, tokenizer, is_constrained=flag, **SHORT) for flag in (True, False))
    trees = parser(SENTENCES)
    words = [split_words(text) or None for text in SENTENCES]
    assert [tree and tree.words for tree in trees] == [tree and tree.words for tree in free_parser(SENTENCES)] == words
    assert parser.num_repaired == 0 < free_parser.num_repaired <= 3
    assert trees[2].words == ["She", ",", "-LRB-", "the", "dog", "-RRB-", "sees", "in", "Oslo", "."]
    assert parser(SENTENCES[0]) == trees[0]


@pytest.mark.parametrize("word", ["XX", "XXL", "\u00a0x", "a\u00a0b", "\u2028", "(S", "naïve", "1,000/x"])
def test_words_with_brackets_spaces_or_unusual_characters_can_be_parsed(model, tokenizer, word):
    parser = Parser(model, tokenizer, **SHORT)
    assert parser(f"{word} dog {word}").words == split_words(f"{word} dog {word}")
    assert not parser.num_repaired


def test_a_sentence_too_long_for_the_search_is_refused_before_any_sentence_is_parsed(model, tokenizer, monkeypatch):
    parser = Parser(model, tokenizer, **SHORT)
    monkeypatch.setattr(parser_module, "MOST_TOKENS", len(tokenizer("The dog barks .").input_ids))
    assert parser("The dog barks .").words == ["The", "dog", "barks", "."]
    monkeypatch.setattr(parser, "_search", None)  # if a search began, it would raise a TypeError
    longer = "The dog " * 700
    number = len(tokenizer(longer.strip()).input_ids)
    with pytest.raises(ValueError, match=rf"sentence 3 has {number:,} tokens \(sub-words\), more than the"):
        parser(["The dog barks .", "", longer, longer])


def test_a_translation_model_is_refused_as_a_parser(build_tiny_model):
    with pytest.raises(ValueError, match=r"no brackets such as '\(NP': it was not trained to parse"):
        Parser(build_tiny_model(), train_tokenizer(["a dog"], vocab_size=300))


@pytest.fixture
def model_folder(model, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr("vaswani_transformer.parsing.parser.LENGTH_OFFSET", SHORT["max_length_offset"])
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_the_command_writes_one_tree_for_each_line(model_folder, model, tokenizer, tmp_path, capsys, output_of):
    assert load_parser(model_folder, **SHORT)(SENTENCES) == Parser(model, tokenizer, **SHORT)(SENTENCES)
    write_lines(tmp_path / "in.txt", SENTENCES)
    command = f"parse --model {model_folder} --input {tmp_path}/in.txt --num_beams 1"
    vaswani(f"{command} --output {tmp_path}/out.mrg")
    lines = (tmp_path / "out.mrg").read_text(encoding="utf-8").split("\n")
    assert [tree.words for tree in parse_trees(lines, name="out")] == [split_words(text) for text in SENTENCES if text]
    assert [bool(line) for line in lines] == [True, False, True, True, False]
    assert "0 of 4 outputs repaired" in capsys.readouterr().err
    assert output_of(command).split("\n") == lines


def test_the_command_warns_of_words_that_contain_punctuation(model_folder, tmp_path, capsys):
    write_lines(tmp_path / "in.txt", ["Well, a dog.", "a dog ."])
    vaswani(f"parse --model {model_folder} --input {tmp_path}/in.txt --num_beams 1")
    assert "words with punctuation in them: 2, such as Well, dog." in capsys.readouterr().err


def test_the_command_scores_against_gold_trees(model_folder, treebank, tmp_path, output_of):
    output = tmp_path / "out.mrg"
    assert "F1 " in output_of(f"parse --model {model_folder} --num_beams 1 --gold {treebank} --output {output}")
    assert [tree.leaves[0].tag for tree in read_trees(output)] == ["DT", "PRP", "NNS"]


def test_a_treebank_is_prepared_for_training(treebank, tmp_path, output_of):
    (tmp_path / "dev.mrg").write_text(f"{TREEBANK}\n")
    files = f"--train {treebank} {treebank} --dev {tmp_path}/dev.mrg --output {tmp_path}/data"
    options = "--task parsing --copy_words --recipe parsing_small --vocab_size 310"
    assert "train: read 6 pairs, dropped none, kept 6 pairs with" in output_of(f"prepare {files} {options}")
    dev = read_json(tmp_path / "data/dev.json")
    assert dev[0] == ["The dog barks .", "(S (NP The dog )NP (VP barks )VP . )S"]
