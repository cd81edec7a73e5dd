"""The benchmark programs run from end to end, and what they compare is the same model."""

import contextlib
import json
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from accelerate.state import AcceleratorState, GradientState
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from vaswani_transformer import VaswaniConfig, VaswaniForConditionalGeneration
from vaswani_transformer.conversion.marian import copy_weights
from vaswani_transformer.data.batching import TokenizedPairs
from vaswani_transformer.data.tokenization import train_tokenizer
from vaswani_transformer.export.ctranslate2_converter import export_model

SCRIPTS = Path(__file__).parents[2] / "scripts"
TINY = {"vocab_size": 300, "d_model": 16, "d_ff": 24, "num_heads": 4, "encoder_layers": 2, "decoder_layers": 1}
SOURCES = ["a dog runs .", "two men stand at the river and fish .", "she reads .", "a child eats an apple ."]
OURS = ["vaswani_transformer", "vaswani_transformer int8", "vaswani_transformer, raw generate()"]
DECODERS = [*OURS, "MarianMTModel", "CTranslate2", "CTranslate2 int8"]
TARGETS = ["ein hund rennt .", "zwei männer stehen am fluss und angeln .", "sie liest .", "ein kind isst ."]


@pytest.fixture
def common(monkeypatch):
    """The module that the programs share, and a size small enough for tests."""
    monkeypatch.syspath_prepend(SCRIPTS)
    import benchmark_common

    monkeypatch.setitem(benchmark_common.SIZES, "tiny", TINY)
    return benchmark_common


@pytest.fixture
def corpus(tmp_path):
    for language, sentences in (("en", SOURCES), ("de", TARGETS)):
        (tmp_path / f"text.{language}").write_text("\n".join(sentences) + "\n", encoding="utf-8")
    return tmp_path


def build_pair(common, **options):
    """A model whose every weight counts, and its twin."""
    torch.manual_seed(0)
    model = VaswaniForConditionalGeneration(VaswaniConfig(**TINY | options)).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    marian = common.build_marian(model.config).eval()
    copy_weights(model, marian)
    return model, marian


@pytest.mark.parametrize(
    "options",
    [
        {"position_layout": "concatenated"},
        {"position_layout": "interleaved"},
        {"attention_bias": True, "output_bias": True},
    ],
)
def test_marian_with_copied_weights_has_our_logits(common, options):
    model, marian = build_pair(common, **options)
    input_ids = torch.randint(3, 300, (3, 9))
    input_ids[1, 6:] = model.config.pad_token_id
    batch = {
        "input_ids": input_ids,
        "attention_mask": (input_ids != model.config.pad_token_id).long(),
        "decoder_input_ids": torch.randint(3, 300, (3, 7)),
    }
    with torch.no_grad():
        torch.testing.assert_close(model(**batch).logits, marian(**batch).logits, atol=1e-4, rtol=0)


def test_marian_with_copied_weights_has_our_loss_and_gradients(common):
    from benchmark_peers import Marian

    torch.manual_seed(0)
    model = VaswaniForConditionalGeneration(VaswaniConfig(**TINY, dropout=0.0, position_layout="concatenated"))
    marian = Marian(model.config)
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


PEERS = ("marian", "torch", "x-transformers", "opennmt-py", "joeynmt")


@pytest.fixture(params=PEERS)
def peer(request, common):
    """The other systems one by one, in evaluation mode."""
    from benchmark_peers import PEERS

    torch.manual_seed(0)
    try:
        return PEERS[request.param](VaswaniConfig(**TINY)).eval()
    except ImportError as error:
        pytest.skip(f"needs {PEERS[request.param].package}: {error}")


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
    from benchmark_peers import num_matrix_weights

    assert num_matrix_weights(peer) == num_matrix_weights(VaswaniForConditionalGeneration(peer.config))
    ids = torch.randint(3, 300, (2, 5))
    peer(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids).loss.backward()
    assert all(weight.grad is not None for weight in peer.parameters() if weight.requires_grad)


def test_a_peer_that_is_not_installed_is_named(common, monkeypatch):
    import benchmark_peers

    monkeypatch.setitem(sys.modules, "x_transformers", None)
    model = VaswaniForConditionalGeneration(VaswaniConfig(**TINY))
    found, missing = benchmark_peers.find_peers(["x-transformers", "torch"], model)
    assert found == ["torch"]
    assert "x_transformers" in missing["x-transformers"]
    assert f"torch {torch.__version__}" in benchmark_peers.describe_peers(found)


def test_a_peer_of_another_size_is_refused(common, monkeypatch):
    import benchmark_peers

    larger = VaswaniConfig(**TINY | {"d_ff": 48})
    monkeypatch.setitem(benchmark_peers.PEERS, "torch", lambda config: benchmark_peers.TorchTransformer(larger))
    with pytest.raises(ValueError, match=r"torch has matrices of [\d,]+ entries, our model of [\d,]+"):
        benchmark_peers.find_peers(["torch"], VaswaniForConditionalGeneration(VaswaniConfig(**TINY)))


@pytest.mark.parametrize("options", [{"d_k": 8}, {"position_embedding_type": "learned"}, {"attention_window": 3}])
def test_a_model_that_marian_cannot_be_is_refused(common, options):
    with pytest.raises(ValueError, match="MarianMTModel cannot have"):
        common.build_marian(VaswaniConfig(**TINY | options))


def test_the_peak_of_memory_is_seen_after_it_was_given_back(common):
    def work():
        torch.ones(25, 2**20)  # 100 MiB

    assert 90 < common.peak_growth(work) < 150


@pytest.fixture
def train(common, corpus, monkeypatch):
    """A function that runs the training benchmark and returns the rows of its result."""
    import benchmark_training

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


def test_training_benchmark_runs(common, train, capsys):
    ours, theirs = train(in_children=True)
    assert "target tokens/s" in capsys.readouterr().out
    assert (ours["system"], theirs["system"]) == (common.OURS, common.MARIAN)
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


def test_fill_and_balance_are_those_of_a_plan_by_hand(common):
    import benchmark_training

    lengths = [(4, 3), (2, 4), (2, 2), (3, 1)]
    columns = {"input_ids": [[5] * source for source, _ in lengths], "labels": [[5] * target for _, target in lengths]}
    pairs = TokenizedPairs(pa.table(columns), pad_token_id=1)
    whole = benchmark_training.measure_fill(pairs, 100, 1)
    assert whole["fill"] == (11 + 10) / (4 * (4 + 4))
    assert whole["epoch"] == whole["worst_update"] == 1
    assert benchmark_training.measure_fill(pairs, 100, 4)["fill"] == 1
    assert benchmark_training.measure_fill(pairs, 100, 4)["worst_update"] == 7 / (21 / 4)


def test_training_benchmark_wants_both_sides_of_the_text(common, corpus):
    import benchmark_training

    with pytest.raises(SystemExit, match="go together"):
        benchmark_training.main(["--source", str(corpus / "text.en")])


def test_training_benchmark_refuses_peers_it_does_not_know(common, capsys):
    import benchmark_training

    with pytest.raises(SystemExit):
        benchmark_training.main(["--peers", "marian,fairseq"])
    assert "there is no peer fairseq; choose from marian,torch," in capsys.readouterr().err


@pytest.fixture
def decode(common, corpus, monkeypatch):
    """A function that runs the decoding benchmark and returns the rows of its result."""
    import benchmark_decoding
    import decoding_systems

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
        assert set(row["ratios"]) == set(DECODERS[3:]) - {row["system"]}
        assert row["same_as"] == (None if row["system"] == DECODERS[0] else DECODERS[0])
        if row["system"] in DECODERS[2:5]:
            assert row["same_translations"] == len(SOURCES)
    assert "CTranslate2 differ by" in capsys.readouterr().out


def test_decoding_benchmark_keeps_the_threads_asked_for_whatever_ctranslate2_sets(common, tmp_path, monkeypatch):
    import decoding_systems

    threads = torch.get_num_threads()
    # More of them are not put to work: processes that later tests fork off this one would wait for them for ever.
    monkeypatch.setattr(decoding_systems, "CTranslate2System", lambda *_, **__: torch.set_num_threads(threads + 1))
    monkeypatch.setattr(decoding_systems, "largest_difference_of_log_probs", lambda *_: 0.0)
    model, _ = build_pair(common)
    decoding_systems.Models(model, train_tokenizer(SOURCES, vocab_size=300), tmp_path, [[5, 6, 2]])
    found = torch.get_num_threads()
    torch.set_num_threads(threads)
    assert found == threads


def test_decoding_benchmark_searches_as_each_peer_with_a_trained_model(common, decode, corpus):
    model, _ = build_pair(common)
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


def test_decoding_benchmark_compares_a_model_of_a_gpu_on_the_cpu(common, tmp_path, monkeypatch):
    import decoding_systems

    class OnGpu:
        """A model that cannot be used before it is moved."""

        def cpu(self):
            return model

    model, _ = build_pair(common)
    monkeypatch.setattr(decoding_systems.importlib.util, "find_spec", lambda name: None)
    models = decoding_systems.Models(OnGpu(), train_tokenizer(SOURCES, vocab_size=300), tmp_path, [[5, 6, 2]])
    assert models.differences["logits of MarianMTModel"] < 1e-4


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


def test_quick_settings_are_defaults(common):
    import benchmark_decoding

    options = ["--quick", "--repeats", "7"]
    args = common.parse_quickly(benchmark_decoding.build_parser(), options, **benchmark_decoding.QUICK)
    assert (args.sentences, args.batch_sizes, args.repeats) == (16, [1, 16], 7)


def test_decoding_benchmark_refuses_sizes_it_does_not_know(common, capsys):
    import benchmark_decoding

    with pytest.raises(SystemExit):
        benchmark_decoding.main(["--sizes", "small,huge"])
    assert "there is no size huge; choose from tiny,small,base" in capsys.readouterr().err


def test_decoding_benchmark_refuses_models_that_differ(common, tmp_path):
    import decoding_systems

    model, marian = build_pair(common)
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
def gpu_report(common, monkeypatch):
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
    arguments = ["--device", "cpu", "--size", "tiny", "--updates", 2, "--warmup_updates", 1, "--vocab_size", 300]
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
        assert row["skipped_updates"] == 0
    ours, _, marian = result["rows"]
    assert ours["target_tokens_per_update"] == marian["target_tokens_per_update"]


def test_gpu_report_goes_on_after_a_system_that_failed(gpu_report, corpus, capsys, monkeypatch):
    def fail(self):
        raise MemoryError("a batch of (90, 70) does not fit")

    monkeypatch.setattr(gpu_report.MarianTrainer, "_build", fail)
    assert run_gpu_report(gpu_report, corpus, "--systems", "marian", "eager") == 0
    printed = capsys.readouterr().out
    assert "tiny, MarianMTModel: MemoryError: a batch of (90, 70) does not fit" in printed
    assert "\ntiny  vaswani_transformer " in printed
    assert run_gpu_report(gpu_report, corpus, "--systems", "marian") == 1


def test_gpu_report_wants_one_kind_of_data(common):
    import gpu_report

    for arguments in ([], ["--data", "a", "--source", "b", "--target", "c"], ["--source", "b"]):
        with pytest.raises(SystemExit, match="give --data, or --source and --target"):
            gpu_report.main(arguments)


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
def test_gpu_report_never_takes_the_cpu_for_a_gpu(common):
    import gpu_report

    with pytest.raises(SystemExit, match="there is no CUDA device here"):
        gpu_report.main(["--data", "a"])


def test_gpu_report_has_the_training_cost_of_the_paper(common):
    import gpu_report

    rows = [dict(zip(gpu_report.HEADER, gpu_report.format_paper_row(size), strict=True)) for size in ("base", "big")]
    assert [row["training cost, FLOP"] for row in rows] == ["3.3e+18", "2.3e+19"]


def test_model_flop_are_those_that_pytorch_counts(common):
    import gpu_report

    config = VaswaniConfig(**TINY, d_k=5, d_v=3, label_smoothing=0.0)
    config._attn_implementation = "eager"
    model = VaswaniForConditionalGeneration(config).train()
    batch, source_length, target_length = 3, 6, 5
    input_ids, labels = torch.randint(3, 300, (batch, source_length)), torch.randint(3, 300, (batch, target_length))
    # PyTorch does not know the product that the loss adds in place.
    in_place = {torch.ops.aten.addmm_: lambda total, left, right, **_: 2 * left.numel() * right[-1]}
    with FlopCounterMode(display=False, custom_mapping=in_place) as counter:
        model(input_ids=input_ids, labels=labels).loss.backward()
    # PyTorch counts the whole square of the decoder's self-attention, of which the causal mask hides almost half.
    hidden = batch * target_length * (target_length - 1) // 2
    hidden *= 3 * 2 * config.num_heads * (config.d_k + config.d_v) * config.decoder_layers
    lengths = np.full(batch, source_length), np.full(batch, target_length)
    assert counter.get_total_flops() - hidden == gpu_report.count_flop(config, *lengths)
