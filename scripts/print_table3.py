"""Print the rows of Table 3 that scripts/table3.sh has trained and scored, beside the paper's.

python scripts/print_table3.py runs/table3
"""

import argparse
import json
import re
from pathlib import Path

from vaswani_transformer import scores
from vaswani_transformer.recipes import TABLE_3, TABLE_3_MODELS

SCORES_FILE = "dev_scores.txt"  # what `vaswani evaluate` printed
# Perplexity per sub-word, BLEU, and millions of parameters where the paper gives them.
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
HEADER = """\
| row | change | updates | PPL | paper | BLEU | paper | parameters, M | paper |
|---|---|---|---|---|---|---|---|---|"""


def format_row(row: str, run: Path) -> str:
    """One line of the table, from the files of a run."""
    description = json.loads((run / "recipe.json").read_text(encoding="utf-8"))
    printed = (run / SCORES_FILE).read_text(encoding="utf-8")
    found = [re.search(rf"^{name} ([\d.]+) ", printed, re.MULTILINE) for name in ("perplexity", scores.PAPER)]
    if None in found:
        raise ValueError(
            f"{run / SCORES_FILE} lacks the perplexity or the {scores.PAPER!r} that `vaswani evaluate` prints: remove "
            f"it and score this run again with scripts/table3.sh."
        )
    perplexity, bleu = (float(match[1]) for match in found)
    paper_perplexity, paper_bleu, paper_millions = PAPER[row]
    cells = [
        row,
        ", ".join(f"{name} {value}" for name, value in TABLE_3_MODELS[row].items()),
        f"{description['recipe']['num_updates']:,}",
        f"{perplexity:.2f}",
        f"{paper_perplexity:.2f}",
        f"{bleu:.1f}",
        f"{paper_bleu:.1f}",
        f"{description['num_parameters'] / 1e6:.1f}",
        str(paper_millions or ""),
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="holds a folder for each row")
    folder = parser.parse_args().folder
    done = [row for row in TABLE_3 if (folder / row / SCORES_FILE).exists()]
    if not done:
        parser.error(f"{folder} holds no row with a {SCORES_FILE}; run scripts/table3.sh first")
    try:
        rows = [format_row(row, folder / row) for row in done]
    except ValueError as error:
        parser.error(str(error))
    print("\n".join([HEADER, *rows]))
    printed = "".join((folder / row / SCORES_FILE).read_text(encoding="utf-8") for row in done)
    signatures = sorted(set(re.findall(rf"^{scores.PAPER} \S+  (\S+)", printed, re.MULTILINE)))
    print(f"\nBLEU of tokens, compounds split as in the paper: {', '.join(signatures)}")


if __name__ == "__main__":
    main()
