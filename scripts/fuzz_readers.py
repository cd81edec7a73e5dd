"""Feed readers of files and sentences with damaged and hostile input for a given time.

    python scripts/fuzz_readers.py --minutes 10

A reader may return a result, or refuse with one of the errors that the command line shows in one line. Anything else is
a finding: another exception, or more than `SECONDS` of processor time for one example. Prints the number of examples
and the findings; the exit status is 1 if there is one. Inputs are random bytes and text, and valid files with bits
flipped, cut, pasted over or, in JSON, with values replaced: text and trees to learn from, models and runs, models to
convert, shortlists, scores and sentences. Prepared data, tokenizers to convert and partial translations are left out.
"""

import argparse
import contextlib
import copy
import gzip
import io
import json
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pyarrow
import pyarrow.parquet
import torch
import transformers
from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from hypothesis import seed as hypothesis_seed
from hypothesis import strategies as st
from transformers import MarianConfig, MarianMTModel

from vaswani_transformer import TranslationPipeline, VaswaniConfig, VaswaniForConditionalGeneration, train_tokenizer
from vaswani_transformer.cli import USER_ERRORS
from vaswani_transformer.commands.arguments import read_shortlist
from vaswani_transformer.conversion import fairseq, marian
from vaswani_transformer.conversion.fairseq_dictionary import build_tokenizer, read_dictionary
from vaswani_transformer.data import corpus
from vaswani_transformer.data import lines as text_lines
from vaswani_transformer.hub.card import CardText, build_card, check_card, read_scores
from vaswani_transformer.loading import load_translator
from vaswani_transformer.parsing.linearisation import read_pairs
from vaswani_transformer.parsing.parser import Parser
from vaswani_transformer.parsing.trees import read_trees
from vaswani_transformer.parsing.vocabulary import learn_vocabulary
from vaswani_transformer.training.checkpoints import average_checkpoints, complete_checkpoints, select_checkpoints
from vaswani_transformer.training.cost import RunCost
from vaswani_transformer.training.recipes import PHRASEBOOK
from vaswani_transformer.training.run_folder import claim_run
from vaswani_transformer.translation.translator import translate

SECONDS = 30  # of processor time that one example may take
EXAMPLES_PER_ROUND = 10
MEMORY = 24 * 2**30  # limit of this process
SENTENCES = ["a dog runs", "two cats sleep on the bed", "das Mädchen 'lacht' <b>"]
SCORE = "BLEU 40.57  nrefs:1|case:mixed\nperplexity 5.003 per sub-word\nsearch num_beams:5  model runs/x\n"
WORDS = "der 9\nHund 8\nHund 7 #fairseq:overwrite\n"
SIZES = {"d_model": 8, "d_ff": 8, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1}
TREES = "(S (NP (DT The) (NN dog)) (VP (VBZ barks)) (. .))\n((S (NP-SBJ (-NONE- *)) (VP (VB Go))))\n"
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
HOSTILE_TEXT = st.one_of(
    st.text(st.characters(exclude_categories=()), max_size=60),  # lone surrogates too
    st.sampled_from(
        ["<script>alert(1)</script>", "\0", "\u202eabc\u202c", "</s><s><pad>", "\ud800", "\r\n\t ", "a\u2028b"]
    ),
    st.builds(lambda text, times: text * times, st.text(min_size=1, max_size=3), st.sampled_from([300, 3_000])),
)


@dataclass
class Tally:
    """Results of the examples of one reader."""

    read: int = 0
    refused: int = 0
    findings: dict[str, str] = field(default_factory=dict)  # place -> example


def mutations(valid: bytes) -> st.SearchStrategy[bytes]:
    """Return `valid` with damage in up to three places, or any bytes."""
    place = st.integers(0, max(0, len(valid) - 1))
    flip = st.tuples(st.just("flip"), place, st.integers(0, 7))
    cut = st.tuples(st.just("cut"), place, st.just(0))
    paste = st.tuples(st.just("paste"), place, st.binary(max_size=12))
    drop = st.tuples(st.just("drop"), place, st.integers(1, 40))
    damage = st.lists(st.one_of(flip, cut, paste, drop), min_size=1, max_size=3)
    flips = st.lists(flip, min_size=1, max_size=3)
    return flips.map(partial(_damage, valid)) | damage.map(partial(_damage, valid)) | st.binary(max_size=200)


def _damage(valid: bytes, places: list[tuple]) -> bytes:
    data = bytearray(valid)
    for kind, place, what in places:
        if kind == "flip" and place < len(data):
            data[place] ^= 1 << what
        elif kind == "cut":
            del data[place:]
        elif kind == "paste":
            data[place : place + len(what)] = what
        elif kind == "drop":
            del data[place : place + what]
    return bytes(data)


def json_mutations(valid: bytes) -> st.SearchStrategy[bytes]:
    """Return a JSON object with one of its values replaced, at any depth, or damaged as bytes are."""
    value = json.loads(valid)
    paths = [path for path in _paths(value) if path]
    replaced = st.builds(
        partial(_replace, value), st.sampled_from(paths[:2_000]), JSON_VALUES | st.integers(2**30, 2**70)
    )
    return replaced | mutations(valid)


def _paths(value: object, path: tuple = ()) -> Iterator[tuple]:
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from _paths(inner, (*path, key))


def _replace(value: object, path: tuple, new: object) -> bytes:
    value = copy.deepcopy(value)
    inner = value
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = new
    return json.dumps(value).encode("utf-8", errors="surrogatepass")


class Fuzz:
    """The readers, each with a valid file to damage, in a folder of its own."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.model = folder / "run" / "model"
        self._write_run()
        self._write_foreign_models()
        self.translator = load_translator(self.model)
        self.parser = self._build_parser()
        self.pipeline = TranslationPipeline(*self.translator, task="translation")

    def _write_run(self) -> None:
        tokenizer = train_tokenizer(SENTENCES * 3, vocab_size=290)
        model = VaswaniForConditionalGeneration(VaswaniConfig(vocab_size=len(tokenizer), **SIZES))
        model.generation_config.max_length_offset = 3
        model.save_pretrained(self.model)
        tokenizer.save_pretrained(self.model)
        self.description = {
            "recipe": PHRASEBOOK.to_dict(),
            "seed": 0,
            "data": "1f",
            "mixed_precision": "no",
            "num_processes": 1,
            "num_parameters": model.num_parameters(),
        }
        claim_run(self.model.parent, self.description, done=0)
        line = {"update": 50, "seconds": 9.5, "target_tokens_per_second": 12.5, "dev_perplexity": 7.5}
        (self.model.parent / "log.jsonl").write_text(json.dumps(line) + "\n")

    def _write_foreign_models(self) -> None:
        """Write the weights of one model in the formats of fairseq and Marian."""
        self.marian, self.fairseq = self.folder / "marian", self.folder / "fairseq" / "model.pt"
        self.fairseq.parent.mkdir()
        dictionary = self.fairseq.with_name("dict.txt")
        dictionary.write_text(WORDS)
        config = VaswaniConfig(
            vocab_size=len(read_dictionary(dictionary)), attention_bias=True, position_layout="fairseq", **SIZES
        )
        weights = VaswaniForConditionalGeneration(config).state_dict()
        names = {name: fairseq.OUTER_NAMES.get(name, fairseq.fairseq_name(name)) for name in weights}
        weights = {names[name].removeprefix("model."): weight for name, weight in weights.items()}
        settings = argparse.Namespace(encoder_attention_heads=config.num_heads)
        torch.save({"args": settings, "model": weights}, self.fairseq)
        sizes = {"d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "max_position_embeddings": 32}
        sizes |= {f"{stack}_{size}": 2 for stack in ("encoder", "decoder") for size in ("attention_heads", "ffn_dim")}
        tokens = {"pad_token_id": 19, "decoder_start_token_id": 19, "bos_token_id": 0, "eos_token_id": 0}
        MarianMTModel(MarianConfig(vocab_size=20, scale_embedding=True, **sizes, **tokens)).save_pretrained(self.marian)

    def _build_parser(self) -> Parser:
        path = self.folder / "train.mrg"
        path.write_text(TREES)
        tokenizer = learn_vocabulary(lambda: read_pairs(path, copy_words=True), vocab_size=290)
        model = VaswaniForConditionalGeneration(VaswaniConfig(vocab_size=len(tokenizer), **SIZES)).eval()
        return Parser(model, tokenizer, num_beams=1, max_length_offset=4)

    def readers(self) -> dict[str, tuple[st.SearchStrategy, Callable[[object], object]]]:
        """Return {name: (examples, reader of one)}."""
        text = "".join(f"{sentence}\n" for sentence in SENTENCES).encode()
        records = [{"translation": {"en": sentence, "de": sentence}} for sentence in SENTENCES]
        lines = "".join(json.dumps(record) + "\n" for record in records).encode()
        buffer = io.BytesIO()
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), buffer)
        files = {
            "two text files": ("a.en", text, self._read_two_files),
            "gzip": ("a.gz", gzip.compress(text), lambda path: list(text_lines.read_lines(path))),
            "tsv": ("a.tsv", text.replace(b" ", b"\t", 1), self._read_corpus),
            "csv": ("a.csv", b'en,de\n"' + text.replace(b" ", b'","', 1) + b'"', self._read_corpus),
            "JSON lines": ("a.jsonl", lines, self._read_corpus),
            "parquet": ("a.parquet", buffer.getvalue(), self._read_corpus),
            "trees": ("a.mrg", TREES.encode(), lambda path: list(read_trees(path))),
            "score": ("a.score", SCORE.encode(), lambda path: read_scores("x", path)),
            "shortlist": ("a.txt", text, lambda path: read_shortlist(path, self.translator[1])),
            "fairseq dictionary": ("dict.txt", WORDS.encode(), lambda path: build_tokenizer(read_dictionary(path))),
        }
        found = {
            name: (mutations(valid), partial(self._write_and_read, self.folder / file, read))
            for name, (file, valid, read) in files.items()
        }
        examples, read_lines = found["JSON lines"]
        found["JSON lines"] = (examples | json_mutations(lines.split(b"\n")[0]), read_lines)
        found |= {
            "fairseq checkpoint": (
                mutations(self.fairseq.read_bytes()),
                partial(self._with_file, self.fairseq, self._import_fairseq),
            ),
            "sentence": (HOSTILE_TEXT, self._translate),
            # Short, because the constrained search repeats every word, one step per token, of which a character has
            # at most four.
            "sentence to parse": (HOSTILE_TEXT.map(lambda text: text[:40]), self.parser),
            "pipeline": (HOSTILE_TEXT, partial(self.pipeline, max_new_tokens=8)),
            "text of a card": (HOSTILE_TEXT, self._write_card),
        }
        weights = self.model / "model.safetensors"
        header = 8 + int.from_bytes(weights.read_bytes()[:8], "little")
        in_header = mutations(weights.read_bytes()[:header]).map(lambda data: data + weights.read_bytes()[header:])
        found["its header"] = (in_header, partial(self._with_file, weights, self._load_and_translate))
        found["average"] = (mutations(weights.read_bytes()), partial(self._with_file, weights, self._average))
        run, names = self.model.parent, ("config.json", "generation_config.json", "model.safetensors")
        for prefix, folder, files, reader in (
            ("", self.model, (*names, "tokenizer.json", "tokenizer_config.json"), self._load_and_translate),
            ("Marian's ", self.marian, names, self._convert_marian),
            ("", run, ("recipe.json", "log.jsonl"), self._read_run),
        ):
            for path in (folder / name for name in files):
                damage = mutations if path.suffix == ".safetensors" else json_mutations
                found[prefix + path.name] = (damage(path.read_bytes()), partial(self._with_file, path, reader))
        return found

    @staticmethod
    def _write_and_read(path: Path, read: Callable[[Path], object], data: bytes) -> object:
        path.write_bytes(data)
        return read(path)

    @staticmethod
    def _with_file(path: Path, read: Callable[[], object], data: bytes) -> object:
        """Read the model or run while `data` stands in for one of its files."""
        valid = path.read_bytes()
        path.write_bytes(data)
        try:
            return read()
        finally:
            path.write_bytes(valid)

    def _read_two_files(self, path: Path) -> object:
        path.with_suffix(".de").write_text("".join(f"{sentence}\n" for sentence in SENTENCES))
        return list(corpus.open_parallel([path, path.with_suffix(".de")], source_language="en", target_language="de"))

    def _read_corpus(self, path: Path) -> object:
        return list(corpus.open_parallel(path, source_language="en", target_language="de"))

    def _translate(self, sentence: str) -> object:
        return translate(*self.translator, [sentence, "a dog"], max_new_tokens=8)

    def _load_and_translate(self) -> object:
        return translate(*load_translator(self.model), SENTENCES, max_new_tokens=8)

    def _import_fairseq(self) -> None:
        fairseq.import_model(str(self.fairseq), self.folder / "from fairseq")

    def _convert_marian(self) -> None:
        model = marian.load_marian(str(self.marian))
        marian.compare_logits(marian.from_marian(model), model)

    def _average(self) -> None:
        average_checkpoints([self.model, self.model], self.folder / "averaged")

    def _read_run(self) -> None:
        run = self.model.parent
        with contextlib.suppress(*USER_ERRORS):
            build_card(run)
        with contextlib.suppress(*USER_ERRORS):
            RunCost.read(run)
        complete_checkpoints(run / "checkpoints")
        with contextlib.suppress(*USER_ERRORS):
            select_checkpoints(run / "checkpoints", last=1)
        claim_run(run, self.description, done=5)

    def _write_card(self, text: str) -> None:
        card = build_card(self.model.parent, text=CardText(name=text, data=text, license=text, hardware=text))
        check_card(card)
        assert "<script" not in card.partition("\n---\n")[2]


class TooSlow(BaseException):
    """One example took more than `SECONDS`. No Exception, because readers turn those into their own errors."""


def run_round(
    name: str, examples: st.SearchStrategy, read: Callable[[object], object], tally: Tally, seed: int
) -> None:
    """Try `EXAMPLES_PER_ROUND` examples of one reader."""

    def stop(*_) -> None:
        raise TooSlow(f"more than {SECONDS} s")

    @hypothesis_seed(seed)
    @settings(
        max_examples=EXAMPLES_PER_ROUND,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        verbosity=Verbosity.quiet,
        suppress_health_check=list(HealthCheck),
    )
    @given(examples)
    def try_examples(example: object) -> None:
        signal.signal(signal.SIGPROF, stop)
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        try:
            read(example)
            tally.read += 1
        except USER_ERRORS:
            tally.refused += 1
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            frame = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{type(error).__name__} at {Path(frame.filename).name}:{frame.lineno}"
            tally.findings.setdefault(place, f"{str(error)[:200]!r} from {example!r:.400}")
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)

    try_examples()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", help="names of readers; all by default")
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    end = time.monotonic() + 60 * args.minutes
    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as nowhere:
        readers = Fuzz(Path(folder)).readers()
        readers = {name: reader for name, reader in readers.items() if not args.only or name in args.only}
        tallies = {name: Tally() for name in readers}
        for number in range(args.seed, sys.maxsize):
            for name, (examples, read) in readers.items():
                if time.monotonic() < end:
                    with contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
                        run_round(name, examples, read, tallies[name], number)
            if time.monotonic() >= end:
                break
    for name, tally in tallies.items():
        print(f"{name}: {tally.read} read, {tally.refused} refused, {len(tally.findings)} findings")
        for place, example in tally.findings.items():
            print(f"    {place}: {example}")
    num_examples = sum(tally.read + tally.refused for tally in tallies.values())
    num_findings = sum(len(tally.findings) for tally in tallies.values())
    print(f"{num_examples:,} examples of {len(tallies)} readers, {num_findings} findings")
    return int(num_findings > 0)


if __name__ == "__main__":
    raise SystemExit(main())
