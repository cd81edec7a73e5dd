"""The program that damages files finds what a reader must not do, and reaches the readers it names."""

import signal

import fuzz_readers
import pytest
from hypothesis import strategies as st

READERS_OF_FOREIGN_MODELS = (
    "fairseq checkpoint",
    "fairseq dictionary",
    "Marian's config.json",
    "Marian's generation_config.json",
    "Marian's model.safetensors",
)


@pytest.fixture(autouse=True)
def few_examples(monkeypatch):
    monkeypatch.setattr(fuzz_readers, "EXAMPLES_PER_ROUND", 2)


def test_a_reader_that_hangs_is_found_though_it_takes_every_error_for_damage():
    def read(example):
        try:
            signal.raise_signal(signal.SIGPROF)  # as when the time is over
        except Exception as error:
            raise ValueError("a damaged file") from error

    tally = fuzz_readers.Tally()
    fuzz_readers.run_round("slow", st.integers(), read, tally, seed=0)
    assert (tally.read, tally.refused) == (0, 0)
    assert [place.partition(" at ")[0] for place in tally.findings] == ["TooSlow"]


def test_readers_read_what_is_whole_and_refuse_what_is_damaged(tmp_path):
    fuzzed = fuzz_readers.Fuzz(tmp_path)
    readers = fuzzed.readers()
    fuzzed._import_fairseq()
    fuzzed._convert_marian()
    fuzzed._read_run()
    for name in (*READERS_OF_FOREIGN_MODELS, "shortlist", "sentence to parse"):
        tally = fuzz_readers.Tally()
        fuzz_readers.run_round(name, *readers[name], tally, seed=0)
        assert tally.read + tally.refused == 2, name
        assert not tally.findings
