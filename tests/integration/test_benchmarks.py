"""The benchmark programs run from end to end, and what they compare is the same model."""

import contextlib
import importlib
import json
import sys

import benchmark_common
import benchmark_decoding
import benchmark_peers
import benchmark_training
import decoding_systems
import pyarrow as pa
import pytest
import torch
from accelerate.state import AcceleratorState, GradientState
from torch import nn

from vaswani_transformer import VaswaniConfig, VaswaniForConditionalGeneration
from vaswani_transformer.conversion.marian import copy_weights
from vaswani_transformer.data.batching import TokenizedPairs
from vaswani_transformer.data.tokenization import train_tokenizer
from vaswani_transformer.export.ctranslate2_converter import export_model

TINY = {"vocab_size": 300, "d_model": 16, "d_ff": 24, "num_heads": 4, "encoder_layers": 2, "decoder_layers": 1}
SOURCES = ["a dog runs .", "two men stand at the river and fish .", "she reads .", "a child eats an apple ."]
OURS = ["vaswani_transformer", "vaswani_transformer int8", "vaswani_transformer, raw generate()"]
DECODERS = [*OURS, "MarianMTModel", "CTranslate2", "CTranslate2 int8"]
TARGETS = ["ein hund rennt .", "zwei männer stehen am fluss und angeln .", "sie liest .", "ein kind isst ."]


@pytest.fixture(autouse=True)
def tiny_size(monkeypatch):
    """A size small enough for tests."""
    monkeypatch.setitem(benchmark_common.SIZES, "tiny", TINY)


@pytest.fixture
def corpus(tmp_path):
    for language, sentences in (("en", SOURCES), ("de", TARGETS)):
        (tmp_path / f"text.{language}").write_text("\n".join(sentences) + "\n", encoding="utf-8")
    return tmp_path


def build_pair():
    """A model whose every weight counts, and its twin."""
    torch.manual_seed(0)
    model = VaswaniForConditionalGeneration(VaswaniConfig(**TINY)).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    marian = benchmark_common.build_marian(model.config).eval()
    copy_weights(model, marian)
    return model, marian


def test_marian_with_copied_weights_has_our_loss_and_gradients():
    torch.manual_seed(0)
    model = VaswaniForConditionalGeneration(VaswaniConfig(**TINY, dropout=0.0, position_layout="concatenated"))
    marian = benchmark_peers.Marian(model.config)
    copy_weights(model, marian.model)
    labels = torch.randint(3, 300, (2, 6))
    labels[1, 4:] = -100
    batch = {
        "input_ids": torch.randint(3, 300, (2, 5)),
        "attention_mask": torch.ones(2, 5, dtype=torch.long),
        "labels": labels,
    }
    for num_items in ({}, {"num_items_in_batch": 70}):
        ours, theirs = (system.train()(**batch, **num_items).loss for system in (model, marian))
        torch.testing.assert_close(ours, theirs)
    ours.backward()
    theirs.backward()
    torch.testing.assert_close(
        model.model.shared.weight.grad[3:], marian.model.model.shared.weight.grad[3:], atol=1e-5, rtol=1e-4
    )


@pytest.fixture(params=benchmark_peers.PEERS)
def peer(request):
    """The other systems one by one, in evaluation mode."""
    torch.manual_seed(0)
    try:
        return benchmark_peers.PEERS[request.param](VaswaniConfig(**TINY)).eval()
    except ImportError as error:
        pytest.skip(f"needs {benchmark_peers.PEERS[request.param].package}: {error}")


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@torch.no_grad()
def test_a_peer_sees_neither_padding_nor_the_future(peer):
    input_ids, decoder_input_ids = torch.randint(3, 300, (3, 5)), torch.randint(3, 300, (3, 7))
    attention_mask = torch.ones_like(input_ids)
    attention_mask[1, 3:] = 0
    before = peer.compute_logits(input_ids, attention_mask, decoder_input_ids)
    input_ids[1, 3:], decoder_input_ids[:, 5:] = 9, 11
    after = peer.compute_logits(input_ids, attention_mask, decoder_input_ids)
    torch.testing.assert_close(before[:, :5], after[:, :5])
    assert not torch.allclose(before[:, 5:], after[:, 5:])


def test_a_peer_has_matrices_as_large_as_ours_and_trains_them_all(peer):
    ours, theirs = map(benchmark_peers.num_matrix_weights, (VaswaniForConditionalGeneration(peer.config), peer))
    assert ours == theirs
    ids = torch.randint(3, 300, (2, 5))
    peer(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids).loss.backward()
    assert all(weight.grad is not None for weight in peer.parameters() if weight.requires_grad)


def test_a_peer_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "x_transformers", None)
    model = VaswaniForConditionalGeneration(VaswaniConfig(**TINY))
    found, missing = benchmark_peers.find_peers(["x-transformers", "torch"], model)
    assert found == ["torch"]
    assert "x_transformers" in missing["x-transformers"]
    assert f"torch {torch.__version__}" in benchmark_peers.describe_peers(found)


def test_a_peer_of_another_size_is_refused(monkeypatch):
    larger = VaswaniConfig(**TINY | {"d_ff": 48})
    monkeypatch.setitem(benchmark_peers.PEERS, "torch", lambda config: benchmark_peers.TorchTransformer(larger))
    with pytest.raises(ValueError, match=r"torch has matrices of [\d,]+ entries, our model of [\d,]+"):
        benchmark_peers.find_peers(["torch"], VaswaniForConditionalGeneration(VaswaniConfig(**TINY)))


def test_the_peak_of_memory_is_seen_after_it_was_given_back():
    def work():
        torch.ones(25, 2**20)  # 100 MiB

    assert 90 < benchmark_common.peak_growth(work) < 150


@pytest.fixture
def train(corpus, monkeypatch):
    """A function that runs the training benchmark and returns the rows of its result."""

    def run(*options, in_children: bool = False) -> list[dict]:
        if not in_children:  # a process for each memory would take longer than all the rest
            # Where there is memory to be had already, it does not grow.
            monkeypatch.setattr(benchmark_training, "measure_in_child", lambda work, *args: work(*args) or 1.0)
        output = corpus / "result.json"
        arguments = ["--size", "tiny", "--source", corpus / "text.en", "--target", corpus / "text.de", "--repeats", 2]
        arguments += ["--vocab_size", 300, "--tokens_per_batch", 128, "--updates", 2, "--threads", 1]
        arguments += ["--output", output, *options]
        assert benchmark_training.main([str(argument) for argument in arguments]) == 0
        return json.loads(output.read_text(encoding="utf-8"))["rows"]

    return run


def test_training_benchmark_runs(train, capsys):
    ours, theirs = train(in_children=True)
    assert "target tokens/s" in capsys.readouterr().out
    assert (ours["system"], theirs["system"]) == (benchmark_common.OURS, benchmark_common.MARIAN)
    assert ours["parameters"] < theirs["parameters"]
    assert theirs["ratio"]["min"] <= theirs["ratio"]["median"] <= theirs["ratio"]["max"]


def test_training_benchmark_compares_several_systems_in_bfloat16(train, capsys):
    rows = train("--peers", "marian,torch", "--dtype", "bfloat16")
    assert [row["system"] for row in rows] == ["vaswani_transformer", "MarianMTModel", "torch.nn.Transformer"]
    assert "Training, tiny, bfloat16" in capsys.readouterr().out


def test_training_benchmark_shows_what_grows(train, capsys):
    rows = train("--growth")
    lengths, runs = rows[:6], rows[6:]
    assert [row["sentence_length"] for row in lengths] == [10, 10, 30, 30, 100, 100]
    assert [(run["pairs"], run["updates"]) for run in runs] == [(4, 2), (40, 2), (4, 20)]
    assert all(run["target_tokens_per_second"] > 0 and 0 < run["reading_share"] < 1 for run in runs)
    assert "sentence length" in capsys.readouterr().out


def test_training_benchmark_shows_padding_and_balance(train, capsys):
    rows = train("--fill")
    assert [(row["tokens_per_batch"], row["parts"]) for row in rows] == [
        (tokens, parts) for tokens in (25_000, 4_096) for parts in (1, 4, 8)
    ]
    assert all(0 < row["fill"] <= 1 <= row["epoch"] <= row["worst_update"] for row in rows)
    assert "slowest / mean" in capsys.readouterr().out


def test_fill_and_balance_are_those_of_a_plan_by_hand():
    lengths = [(4, 3), (2, 4), (2, 2), (3, 1)]
    columns = {"input_ids": [[5] * source for source, _ in lengths], "labels": [[5] * target for _, target in lengths]}
    pairs = TokenizedPairs(pa.table(columns), pad_token_id=1)
    whole = benchmark_training.measure_fill(pairs, 100, 1)
    assert whole["fill"] == (11 + 10) / (4 * (4 + 4))
    assert whole["epoch"] == whole["worst_update"] == 1
    assert benchmark_training.measure_fill(pairs, 100, 4)["fill"] == 1
    assert benchmark_training.measure_fill(pairs, 100, 4)["worst_update"] == 7 / (21 / 4)


@pytest.mark.parametrize(
    ("program", "arguments", "message"),
    [
        ("benchmark_training", "--source text.en", "--source and --target go together"),
        ("benchmark_training", "--peers marian,fairseq", "there is no peer fairseq; choose from marian,torch,"),
        ("benchmark_decoding", "--sizes small,huge", "there is no size huge; choose from tiny,small,base"),
        ("gpu_report", "", "give --data, or --source and --target"),
        ("gpu_report", "--data a --source b --target c", "give --data, or --source and --target"),
        ("gpu_report", "--source b", "give --data, or --source and --target"),
        pytest.param(
            *("gpu_report", "--data a", "there is no CUDA device here"),
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU"),
        ),
    ],
)
def test_a_program_says_which_of_its_arguments_are_wrong(capsys, program, arguments, message):
    with pytest.raises(SystemExit) as refusal:
        importlib.import_module(program).main(arguments.split())
    assert message in f"{refusal.value} {capsys.readouterr().err}"


@pytest.fixture
def decode(corpus, monkeypatch):
    """A function that runs the decoding benchmark and returns the rows of its result."""
    # Processes of their own would take longer than all the rest; the test of training has them.
    here = contextlib.nullcontext(lambda work, *args: work(*args))
    monkeypatch.setattr(benchmark_decoding, "open_child", lambda: here)
    monkeypatch.setattr(benchmark_decoding, "PAUSE", 0)
    for setting in ("keep_few_kernels", "keep_freed_memory"):  # which stay for the rest of a process
        monkeypatch.setattr(decoding_systems, setting, lambda: None)

    def run(*options) -> list[dict]:
        output = corpus / "result.json"
        arguments = ["--source", corpus / "text.en", "--repeats", 1, "--vocab_size", 300]
        arguments += ["--threads", 1, "--output", output, *options]
        assert benchmark_decoding.main([str(argument) for argument in arguments]) == 0
        return json.loads(output.read_text(encoding="utf-8"))["rows"]

    return run


def test_decoding_benchmark_runs_and_all_systems_translate_alike(decode, capsys):
    rows = decode("--sizes", "tiny", "--forced_length", 5, "--batch_sizes", 1, 3, "--repeats", 2)
    assert [row["batch_size"] for row in rows] == [1] * 6 + [3] * 6
    assert [row["system"] for row in rows] == DECODERS * 2
    for row in rows:
        assert row["tokens_per_second"] == pytest.approx(5 * row["sentences_per_second"])
        assert list(row["ratios"]) == DECODERS[3:]
        assert row["same_as"] == (None if row["system"] == DECODERS[0] else DECODERS[0])
        if row["system"] in DECODERS[2:5]:
            assert row["same_translations"] == len(SOURCES)
    assert "CTranslate2 differ by" in capsys.readouterr().out


def test_decoding_benchmark_keeps_the_threads_asked_for_whatever_ctranslate2_sets(tmp_path, monkeypatch):
    threads = torch.get_num_threads()
    # More of them are not put to work: processes that later tests fork off this one would wait for them for ever.
    monkeypatch.setattr(decoding_systems, "CTranslate2System", lambda *_, **__: torch.set_num_threads(threads + 1))
    monkeypatch.setattr(decoding_systems, "largest_difference_of_log_probs", lambda *_: 0.0)
    model, _ = build_pair()
    decoding_systems.Models(model, train_tokenizer(SOURCES, vocab_size=300), tmp_path, [[5, 6, 2]])
    found = torch.get_num_threads()
    torch.set_num_threads(threads)
    assert found == threads


def test_decoding_benchmark_searches_as_each_peer_with_a_trained_model(decode, corpus):
    model, _ = build_pair()
    tokenizer = train_tokenizer(SOURCES, vocab_size=300)
    model.save_pretrained(corpus / "model")
    tokenizer.save_pretrained(corpus / "model")
    rows = {row["system"]: row for row in decode("--model", corpus / "model", "--sentences", 2, "--batch_sizes", 2)}
    ours, ours_int8, raw, marian, ctranslate2, ctranslate2_int8 = DECODERS
    references = {
        ours: None,
        ours_int8: ours,
        raw: ours,
        f"{ours}, as Marian": marian,
        f"{ours}, as CTranslate2": ctranslate2,
    }
    references |= {marian: None, ctranslate2: None, ctranslate2_int8: ctranslate2}
    assert {name: row["same_as"] for name, row in rows.items()} == references


def test_decoding_benchmark_shows_what_grows(decode, corpus, capsys):
    options = ["--sizes", "tiny", "--growth", "--sentences", 1, "--batch_sizes", 1, "--forced_length", 2]
    with pytest.raises(SystemExit, match="10 times --sentences 1, and there are 4: give a longer --source"):
        decode(*options)
    (corpus / "longer.en").write_text("\n".join(SOURCES * 3), encoding="utf-8")
    rows = decode(*options, "--source", corpus / "longer.en")
    assert [row["workload"] for row in rows[::6]] == ["as it is", "10 times as many", "10 times as long"]
    assert [row["sentences"] for row in rows[::6]] == [1, 10, 1]
    tokens = [row["tokens_per_second"] / row["sentences_per_second"] for row in rows[::6]]
    assert tokens == pytest.approx([2, 2, 20])
    assert "more  longer" in capsys.readouterr().out


def test_quick_settings_are_defaults():
    options = ["--quick", "--repeats", "7"]
    args = benchmark_common.parse_quickly(benchmark_decoding.build_parser(), options, **benchmark_decoding.QUICK)
    assert (args.sentences, args.batch_sizes, args.repeats) == (16, [1, 16], 7)


def test_decoding_benchmark_refuses_models_that_differ(tmp_path):
    model, marian = build_pair()
    nn.init.zeros_(marian.model.decoder.layers[0].fc2.bias)
    with pytest.raises(RuntimeError, match="logits of MarianMTModel differ from ours by"):
        decoding_systems.largest_difference(model, marian, [[5, 6, 2]])
    export_model(model, train_tokenizer(SOURCES, vocab_size=300), tmp_path)
    system = decoding_systems.CTranslate2System(tmp_path, decoding_systems.Search(4, 0.6), threads=1)
    assert decoding_systems.largest_difference_of_log_probs(model, system, [[5, 6, 2], [7, 2]]) < 1e-3
    nn.init.zeros_(model.model.decoder.layers[0].feed_forward.fc1.weight)
    with pytest.raises(RuntimeError, match="log-probabilities of CTranslate2 differ from ours by"):
        decoding_systems.largest_difference_of_log_probs(model, system, [[5, 6, 2], [7, 2]])


@pytest.fixture
def gpu_report(monkeypatch):
    """The module, running all in this process and on the CPU."""
    import gpu_report

    def run_here(work, *args):
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
        return work(*args)

    monkeypatch.setattr(gpu_report, "measure_in_child", run_here)
    monkeypatch.setitem(gpu_report.MATRICES, "cpu", (64, 5))
    # Compiled code is not under test, and takes a minute to compile.
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    yield gpu_report
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def run_gpu_report(gpu_report, corpus, *options) -> int:
    arguments = ["--device", "cpu", "--size", "tiny", "--updates", 2, "--vocab_size", 300]
    arguments += ["--source", corpus / "text.en", "--target", corpus / "text.de", "--output", corpus, *options]
    return gpu_report.main([str(argument) for argument in arguments])


def test_gpu_report_measures_all_systems_and_writes_both_files(gpu_report, corpus, capsys):
    assert run_gpu_report(gpu_report, corpus) == 0
    printed = capsys.readouterr().out
    text, result = corpus.glob("*_training_cpu_tiny.md"), corpus.glob("*_training_cpu_tiny.json")
    assert next(text).read_text(encoding="utf-8") == f"```\n{printed}```\n"
    result = json.loads(next(result).read_text(encoding="utf-8"))
    assert "CPU, which shows that the program works" in result["device"]
    assert [row["system"] for row in result["rows"]] == list(gpu_report.LABELS.values())
    for row in result["rows"]:
        assert len(row["milliseconds"]) == row["updates"] == 2
        assert row["median_ms"] <= row["p90_ms"]
        assert row["model_flop_per_second"] > 0
        assert row["kernels"] > 100
        assert 0 <= row["idle_share"] < 1
        assert min(row["host_ms"], row["busy_ms"]) > 0
        assert row["skipped_updates"] == 0
    ours, _, marian = result["rows"]
    assert ours["target_tokens_per_update"] == marian["target_tokens_per_update"]


def test_gpu_report_goes_on_after_a_system_that_failed(gpu_report, corpus, capsys, monkeypatch):
    def fail(self):
        raise MemoryError("a batch of (90, 70) does not fit")

    monkeypatch.setattr(gpu_report.MarianTrainer, "_build", fail)
    assert run_gpu_report(gpu_report, corpus, "--systems", "marian", "eager") == 0
    printed = capsys.readouterr().out
    assert "tiny, MarianMTModel, processes 1: MemoryError: a batch of (90, 70) does not fit" in printed
    assert "\ntiny  vaswani_transformer " in printed
    assert run_gpu_report(gpu_report, corpus, "--systems", "marian") == 1


@pytest.mark.slow
def test_gpu_report_measures_processes_that_train_together(gpu_report, corpus):
    assert run_gpu_report(gpu_report, corpus, "--systems", "eager", "--processes", "1", "2") == 0
    (path,) = corpus.glob("*_training_cpu_tiny.json")
    one, two = json.loads(path.read_text(encoding="utf-8"))["rows"]
    assert (one["processes"], two["processes"]) == (1, 2)
    assert one["target_tokens_per_update"] == two["target_tokens_per_update"]


def test_gpu_report_has_the_training_cost_of_the_paper():
    import gpu_report

    costs = [gpu_report.format_paper_row(size)["training cost, FLOP"] for size in ("base", "big")]
    assert costs == ["3.3e+18", "2.3e+19"]
