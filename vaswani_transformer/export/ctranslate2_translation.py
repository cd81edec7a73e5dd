"""Translate with a folder that `vaswani export --format ctranslate2` has written, one line for one line.

python -m vaswani_transformer.export.ctranslate2_translation --model exports/base --rescore < test.en > test.hyp.de

Or without this package:

    translator = ctranslate2.Translator("exports/base")
    tokenizer = transformers.AutoTokenizer.from_pretrained("exports/base")
    source = tokenizer.convert_ids_to_tokens(tokenizer("A dog runs.").input_ids)
    tokens = translator.translate_batch([source], beam_size=4)[0].hypotheses[0]
    print(tokenizer.decode(tokenizer.convert_tokens_to_ids(tokens)))
"""

import argparse
import json
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import ctranslate2
from transformers import GenerationConfig

from ..data.lines import decode_lines
from ..loading import load_tokenizer
from ..model.generation_vaswani import Search
from ..model.search_vaswani import LENGTH_PENALTIES

LINES_PER_WINDOW = 4_096  # read, translated and written at a time
TOKENS_PER_BATCH = 2_000  # of the padded source
# A search ends with this many times num_beams finished hypotheses. With 1 it can miss the best by GNMT's penalty.
RESCORING_PATIENCE = 2


class CTranslate2Translator:
    """Text in, text out, by CTranslate2.

    Args:
        folder: written by `vaswani export --format ctranslate2`.
        translator_options: for `ctranslate2.Translator`: device, compute_type, intra_threads, ...
    """

    def __init__(self, folder: str | Path, **translator_options):
        folder = Path(folder)
        self.translator = ctranslate2.Translator(str(folder), **translator_options)
        self.tokenizer = load_tokenizer(folder)
        self.generation_config = GenerationConfig.from_pretrained(folder)
        self.max_positions = json.loads((folder / "config.json").read_text(encoding="utf-8"))["max_positions"]

    def translate(self, sentences: Sequence[str], *, num_beams: int | None = None, rescore: bool = False) -> list[str]:
        """Translate `sentences`, in their order; an empty one stays empty.

        Args:
            num_beams: by default that of the exported model.
            rescore: choose from CTranslate2's n-best list by the penalty of the model's `length_penalty_type`, not by
                |Y|^length_penalty. The search then goes on to twice as many finished hypotheses.

        Raises:
            RuntimeError: if a sentence is longer than the exported table of positions.
        """
        options = {} if num_beams is None else {"num_beams": num_beams}
        search = Search.resolve(self.generation_config, **options)
        rescore = rescore and search.length_penalty_type != "power"  # CTranslate2's own
        rows = [row for row, sentence in enumerate(sentences) if sentence.strip()]
        tokenizer = self.tokenizer
        sources = [tokenizer.convert_ids_to_tokens(tokenizer(sentences[row], verbose=False).input_ids) for row in rows]
        limit = self.max_positions
        if search.max_length_offset is not None:
            limit = min(max(map(len, sources), default=0) + search.max_length_offset, limit)
        patience = RESCORING_PATIENCE if rescore and search.num_beams > 1 else 1
        results = self.translator.translate_batch(
            sources,
            beam_size=search.num_beams,
            length_penalty=search.length_penalty,
            patience=patience,
            num_hypotheses=patience * search.num_beams if rescore else 1,
            return_scores=rescore,
            return_end_token=True,  # |Y| counts it
            max_input_length=0,
            min_decoding_length=0,
            max_decoding_length=limit,
            max_batch_size=TOKENS_PER_BATCH,
            batch_type="tokens",
        )
        translations = [""] * len(sentences)
        for row, result in zip(rows, results, strict=True):
            best = result.hypotheses[0]
            if rescore:
                best, _ = rescore_hypotheses(result, search)[0]
            ids = tokenizer.convert_tokens_to_ids(best)
            translations[row] = tokenizer.decode(ids, skip_special_tokens=True).replace("\n", " ")
        return translations


def rescore_hypotheses(result: ctranslate2.TranslationResult, search: Search) -> list[tuple[list[str], float]]:
    """Return hypotheses and their scores by the penalty of `search`, best first.

    Args:
        result: of a search by log P / |Y|^length_penalty, its hypotheses with their </s>.
    """
    rescored = [
        (tokens, score * LENGTH_PENALTIES["power"](len(tokens), search.length_penalty) / search.penalise(len(tokens)))
        for tokens, score in zip(result.hypotheses, result.scores, strict=True)
    ]
    return sorted(rescored, key=lambda pair: -pair[1])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder written by `vaswani export --format ctranslate2`")
    parser.add_argument("--rescore", action="store_true", help="choose from the n-best list by GNMT's penalty")
    args = parser.parse_args(argv)
    sys.stdout.reconfigure(encoding="utf-8", newline="\n")
    try:
        translator = CTranslate2Translator(args.model)
        lines = decode_lines(sys.stdin.buffer, name="standard input")
        for window in iter(lambda: list(islice(lines, LINES_PER_WINDOW)), []):
            sys.stdout.writelines(f"{text}\n" for text in translator.translate(window, rescore=args.rescore))
            sys.stdout.flush()
    except (ValueError, OSError, RuntimeError) as error:  # the last is CTranslate2's
        print(f"ctranslate2_translation: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
