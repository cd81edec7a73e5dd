"""Print the rows of Table 3 that were trained and scored, beside the paper's.

A second table compares how each row moved away from base with the paper, and with what another seed does to base.

python scripts/print_table3.py runs/table3
python scripts/print_table3.py scripts/benchmarks/results/table3_reduced
"""

import argparse
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from vaswani_transformer import VaswaniConfig
from vaswani_transformer.evaluation import scores
from vaswani_transformer.training.log import read_log
from vaswani_transformer.training.recipes import TABLE_3

SCORES_FILE = "dev_scores.txt"  # output of `vaswani evaluate`
# Fields of a recipe in which rows differ; big trains for longer, too.
OF_A_ROW = ("model", "num_updates", "checkpoint_interval", "num_averaged_checkpoints")
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
RESULTS = ("epochs", "best epoch", "PPL at the end", "PPL", "paper", "BLEU", "paper", "parameters, M", "paper")
MOVES = ("row", "PPL against base", "paper", "", "BLEU against base", "paper", "")
# The paper's scores are rounded: one unit of the last place is no difference from base.
PAPER_PPL_SPREAD, PAPER_BLEU_SPREAD = 0.015, 0.15


@dataclass(frozen=True)
class Row:
    """A row that was trained and scored; further trainings of one row have the names ROW_seedN."""

    name: str
    settings: str  # data and recipe, without what may differ between rows
    sizes: list[str]  # its cells in the columns `SIZES`
    curve: list[tuple[int, int, float]]  # updates, epochs and perplexity of each evaluation during training
    perplexity: float  # of the model that was scored
    bleu: float  # as the paper counted it
    num_parameters: int
    machine: str  # precision of the training, and processor where it was written down

    @property
    def paper(self) -> tuple[float, float, int | None]:
        return PAPER[_row_of(self.name)]


def read_rows(folder: Path) -> list[Row]:
    """Read the rows in `folder`, in the order of the table.

    Raises:
        ValueError: if there is none, if a score is missing, or if rows differ in more than the table says.
    """
    names = [path.parent.name for path in folder.glob(f"*/{SCORES_FILE}") if _row_of(path.parent.name) in TABLE_3]
    if not names:
        raise ValueError(f"{folder} holds no row with a {SCORES_FILE}; run scripts/table3.sh first")
    order = list(TABLE_3)
    rows = [read_row(folder / name) for name in sorted(names, key=lambda name: (order.index(_row_of(name)), name))]
    for row in rows[1:]:
        if row.settings != rows[0].settings:
            raise ValueError(
                f"{row.name} and {rows[0].name} were not trained alike: {row.settings} and {rows[0].settings}. "
                f"Compare rows of one study."
            )
    return rows


def _row_of(name: str) -> str:
    return name.partition("_seed")[0]


def read_row(run: Path) -> Row:
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
    recipe = description["recipe"]
    config = VaswaniConfig(**recipe["model"])
    evaluations = [line for line in read_log(run) if "dev_perplexity" in line]
    processor = re.search(r"^processor (.+)$", printed, re.MULTILINE)
    precision = description["mixed_precision"]
    alike = {name: value for name, value in recipe.items() if name not in OF_A_ROW}
    return Row(
        run.name,
        json.dumps({"data": description["data"]} | alike),
        [str(getattr(config, field)) for field in SIZES.values()],
        [(line["update"], line["epoch"], line["dev_perplexity"]) for line in evaluations],
        *(float(match[1]) for match in found),
        description["num_parameters"],
        ", ".join([{"no": "float32"}.get(precision, precision), *([processor[1]] if processor else [])]),
    )


def format_scores(row: Row, base: Row | None) -> list[str]:
    """Return the cells of a row of the table."""
    perplexity, bleu, millions = row.paper
    sizes = row.sizes
    if base not in (None, row):
        sizes = ["" if size == usual else size for size, usual in zip(sizes, base.sizes, strict=True)]
    _, epochs, last = row.curve[-1]
    _, best_epoch, _ = min(row.curve, key=lambda evaluation: evaluation[-1])
    return [
        row.name,
        *sizes,
        str(epochs),
        str(best_epoch),
        f"{last:.2f}",
        f"{row.perplexity:.2f}",
        f"{perplexity:.2f}",
        f"{row.bleu:.1f}",
        f"{bleu:.1f}",
        f"{row.num_parameters / 1e6:.1f}",
        str(millions or ""),
    ]


@dataclass(frozen=True)
class Base:
    """What the trainings of base with several seeds say: means, and the way from the least to the greatest."""

    perplexity: float
    bleu: float
    ppl_spread: float  # percent of the mean
    bleu_spread: float  # points


def summarise_base(seeds: Sequence[Row]) -> Base:
    perplexities, bleus = [row.perplexity for row in seeds], [row.bleu for row in seeds]
    usual = mean(perplexities)
    spread = 100 * (max(perplexities) - min(perplexities)) / usual
    return Base(usual, mean(bleus), spread, max(bleus) - min(bleus))


def format_moves(row: Row, base: Base) -> list[str]:
    """Return how the row moved away from base, here and in the paper, and the judgement."""
    paper_perplexity, paper_bleu, _ = row.paper
    usual_perplexity, usual_bleu, _ = PAPER["base"]
    percent, points = 100 * (row.perplexity / base.perplexity - 1), row.bleu - base.bleu
    perplexities_agree = judge(
        direction(percent, base.ppl_spread), direction(paper_perplexity - usual_perplexity, PAPER_PPL_SPREAD)
    )
    bleus_agree = judge(direction(points, base.bleu_spread), direction(paper_bleu - usual_bleu, PAPER_BLEU_SPREAD))
    return [
        row.name,
        f"{percent:+z.1f} %",
        f"{100 * (paper_perplexity / usual_perplexity - 1):+z.1f} %",
        perplexities_agree,
        f"{points:+z.2f}",
        f"{paper_bleu - usual_bleu:+z.1f}",
        bleus_agree,
    ]


def direction(difference: float, spread: float) -> int:
    """Return 1 for up, -1 for down, 0 for a difference that chance or rounding may make."""
    return 0 if abs(difference) <= spread else (1 if difference > 0 else -1)


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
    try:
        rows = read_rows(folder)
    except ValueError as error:
        parser.error(str(error))
    seeds = [row for row in rows if _row_of(row.name) == "base"]
    print(format_markdown(("row", *SIZES, *RESULTS), [format_scores(row, seeds[0] if seeds else None) for row in rows]))
    printed = "".join((folder / row.name / SCORES_FILE).read_text(encoding="utf-8") for row in rows)
    signatures = sorted(set(re.findall(rf"^{scores.PAPER} \S+  (\S+)", printed, re.MULTILINE)))
    machines = ", ".join(f"{machine} ({count})" for machine, count in Counter(row.machine for row in rows).items())
    print(
        f"\nPPL and BLEU are those of the model that was scored, and BLEU is of tokens, compounds split as in the "
        f"paper: {', '.join(signatures)}. Precision and processor, with rows: {machines}\n"
    )
    if len(seeds) < 2:
        print(
            "No row is compared with base: that takes base of another seed too (base_seed1), to see what chance does."
        )
        return
    base = summarise_base(seeds)
    print(format_markdown(MOVES, [format_moves(row, base) for row in rows if row not in seeds]))
    print(
        f"\nBase, {len(seeds)} seeds: PPL {base.perplexity:.2f} within {base.ppl_spread:.1f} %, BLEU {base.bleu:.2f} "
        f"within {base.bleu_spread:.2f}, from the least to the greatest. A row has moved if it differs from the mean "
        f"by more than that here, or by more than the rounding (0.01 and 0.1) in the paper. It agrees if both moved "
        f"the same way or neither moved; if it moved in the paper only, it is too close to tell. With three seeds, one "
        f"judgement in four finds such a move where there is none; each row of the paper is one training."
    )


if __name__ == "__main__":
    main()
