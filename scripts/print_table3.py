"""Print the rows of Table 3 that scripts/table3.sh has trained and scored, beside the paper's.

A second table compares how each row moved away from base with the paper.

python scripts/print_table3.py runs/table3
"""

import argparse
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from vaswani_transformer import VaswaniConfig
from vaswani_transformer.evaluation import scores
from vaswani_transformer.training.recipes import TABLE_3

SCORES_FILE = "dev_scores.txt"  # output of `vaswani evaluate`
# Perplexity per sub-word, BLEU, and millions of parameters if the paper gives them.
PAPER: dict[str, tuple[float, float, int | None]] = {
    "base": (4.92, 25.8, 65),
    "A1": (5.29, 24.9, None),
    "A2": (5.00, 25.5, None),
    "A3": (4.91, 25.8, None),
    "A4": (5.01, 25.4, None),
    "B1": (5.16, 25.1, 58),
    "B2": (5.01, 25.4, 60),
    "C1": (6.11, 23.7, 36),
    "C2": (5.19, 25.3, 50),
    "C3": (4.88, 25.5, 80),
    "C4": (5.75, 24.5, 28),
    "C5": (4.66, 26.0, 168),
    "C6": (5.12, 25.4, 53),
    "C7": (4.75, 26.2, 90),
    "D1": (5.77, 24.6, None),
    "D2": (4.95, 25.5, None),
    "D3": (4.67, 25.3, None),
    "D4": (5.47, 25.7, None),
    "E": (4.92, 25.7, None),
    "big": (4.33, 26.4, 213),
}
# Columns of the paper's table, and their settings. A cell equal to that of base is empty, as in the paper.
SIZES = {
    "N": "encoder_layers",
    "d_model": "d_model",
    "d_ff": "d_ff",
    "h": "num_heads",
    "d_k": "d_k",
    "d_v": "d_v",
    "P_drop": "dropout",
    "eps_ls": "label_smoothing",
    "positions": "position_embedding_type",
}
RESULTS = ("updates", "PPL", "paper", "BLEU", "paper", "parameters, M", "paper")
MOVES = ("row", "PPL against base", "paper", "", "BLEU against base", "paper", "")
# The least difference from base that counts as a move. The paper's scores are rounded: one unit of the last place is no
# difference. Ours come from one training each, which another seed moves too.
PAPER_PPL_MOVES, PAPER_BLEU_MOVES = 0.015, 0.15
PPL_MOVES, BLEU_MOVES = 2.0, 0.5  # percent, points


@dataclass(frozen=True)
class Row:
    """A row that was trained and scored."""

    name: str
    sizes: list[str]  # its cells in the columns `SIZES`
    num_updates: int
    perplexity: float
    bleu: float  # as the paper counted it
    num_parameters: int


def read_row(name: str, run: Path) -> Row:
    """Read a row from the files of its run.

    Raises:
        ValueError: if a score is missing.
    """
    description = json.loads((run / "recipe.json").read_text(encoding="utf-8"))
    printed = (run / SCORES_FILE).read_text(encoding="utf-8")
    found = [re.search(rf"^{score} ([\d.]+) ", printed, re.MULTILINE) for score in ("perplexity", scores.PAPER)]
    if None in found:
        raise ValueError(
            f"{run / SCORES_FILE} lacks the perplexity or the {scores.PAPER!r} that `vaswani evaluate` prints: remove "
            f"it and score this run again with scripts/table3.sh."
        )
    config = VaswaniConfig(**description["recipe"]["model"])
    return Row(
        name,
        [str(getattr(config, field)) for field in SIZES.values()],
        description["recipe"]["num_updates"],
        *(float(match[1]) for match in found),
        description["num_parameters"],
    )


def format_scores(row: Row, base: Row | None) -> list[str]:
    """Return the cells of a row of the table."""
    perplexity, bleu, millions = PAPER[row.name]
    sizes = row.sizes
    if base not in (None, row):
        sizes = ["" if size == usual else size for size, usual in zip(sizes, base.sizes, strict=True)]
    return [
        row.name,
        *sizes,
        f"{row.num_updates:,}",
        f"{row.perplexity:.2f}",
        f"{perplexity:.2f}",
        f"{row.bleu:.1f}",
        f"{bleu:.1f}",
        f"{row.num_parameters / 1e6:.1f}",
        str(millions or ""),
    ]


def format_moves(row: Row, base: Row) -> list[str]:
    """Return how the row moved away from base, here and in the paper, and the judgement."""
    paper_perplexity, paper_bleu, _ = PAPER[row.name]
    usual_perplexity, usual_bleu, _ = PAPER["base"]
    percent, points = 100 * (row.perplexity / base.perplexity - 1), row.bleu - base.bleu
    perplexities_agree = judge(
        direction(percent, PPL_MOVES), direction(paper_perplexity - usual_perplexity, PAPER_PPL_MOVES)
    )
    bleus_agree = judge(direction(points, BLEU_MOVES), direction(paper_bleu - usual_bleu, PAPER_BLEU_MOVES))
    return [
        row.name,
        f"{percent:+.1f} %",
        f"{100 * (paper_perplexity / usual_perplexity - 1):+.1f} %",
        perplexities_agree,
        f"{points:+.1f}",
        f"{paper_bleu - usual_bleu:+.1f}",
        bleus_agree,
    ]


def direction(difference: float, least: float) -> int:
    """Return 1 for up, -1 for down, 0 for a difference too small to count."""
    return 0 if abs(difference) < least else (1 if difference > 0 else -1)


def judge(ours: int, paper: int) -> str:
    """Judge whether two directions agree."""
    if ours == paper:
        return "agrees"
    return "does not agree" if ours else "too close to tell"


def format_markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="holds a folder for each row")
    folder = parser.parse_args().folder
    done = [row for row in TABLE_3 if (folder / row / SCORES_FILE).exists()]
    if not done:
        parser.error(f"{folder} holds no row with a {SCORES_FILE}; run scripts/table3.sh first")
    try:
        rows = [read_row(row, folder / row) for row in done]
    except ValueError as error:
        parser.error(str(error))
    base = next((row for row in rows if row.name == "base"), None)
    print(format_markdown(("row", *SIZES, *RESULTS), [format_scores(row, base) for row in rows]))
    printed = "".join((folder / row / SCORES_FILE).read_text(encoding="utf-8") for row in done)
    signatures = sorted(set(re.findall(rf"^{scores.PAPER} \S+  (\S+)", printed, re.MULTILINE)))
    print(f"\nBLEU of tokens, compounds split as in the paper: {', '.join(signatures)}\n")
    if base is None:
        print("Without base no row can be compared with it: train it too.")
        return
    print(format_markdown(MOVES, [format_moves(row, base) for row in rows if row is not base]))
    print(
        f"\nA row has moved if it differs by at least {PPL_MOVES} % of perplexity or {BLEU_MOVES} BLEU here, or by "
        f"more than the rounding (0.01 and 0.1) in the paper. It agrees if both moved the same way or neither moved; "
        f"if it moved in the paper only, it is too close to tell."
    )


if __name__ == "__main__":
    main()
