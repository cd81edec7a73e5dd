"""Print the scores of the rows of table 3 that were trained with this package (here), beside the paper's scores.

A second table shows how far each row differs from base, here and in the paper, and compares the difference with the
spread of base over its seeds.

python scripts/print_table3.py runs/table3
python scripts/print_table3.py scripts/benchmarks/results/table3_reduced
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from vaswani_transformer import VaswaniConfig

SCORES_FILE = "dev_scores.json"  # written by `vaswani evaluate --json`
PERPLEXITY = "perplexity"  # the names of two scores in this file
BLEU = "BLEU, tokenised, compounds split as in the paper"
# Fields of a recipe in which rows may differ. The last three differ because big trains for longer.
MAY_DIFFER = ("model", "num_updates", "checkpoint_interval", "num_averaged_checkpoints")
# The paper's rows: perplexity per sub-word, BLEU, and millions of parameters where the paper gives them.
PAPER_TABLE = """\
base  4.92  25.8  65
A1    5.29  24.9
A2    5.00  25.5
A3    4.91  25.8
A4    5.01  25.4
B1    5.16  25.1  58
B2    5.01  25.4  60
C1    6.11  23.7  36
C2    5.19  25.3  50
C3    4.88  25.5  80
C4    5.75  24.5  28
C5    4.66  26.0  168
C6    5.12  25.4  53
C7    4.75  26.2  90
D1    5.77  24.6
D2    4.95  25.5
D3    4.67  25.3
D4    5.47  25.7
E     4.92  25.7
big   4.33  26.4  213
"""
PAPER = {row: cells for row, *cells in map(str.split, PAPER_TABLE.splitlines())}
# The columns of the paper's table, with the fields of VaswaniConfig. As in the paper, a cell is empty if its value
# equals the value of base.
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
RESULTS = ("epochs", "best epoch", "PPL of the last epoch", "PPL", "paper", "BLEU", "paper", "parameters, M", "paper")
MOVES = ("row", "PPL against base", "paper", "", "BLEU against base", "paper", "")
# The paper's scores are rounded, so one unit in the last place is not counted as a difference from base.
PAPER_PPL_SPREAD, PAPER_BLEU_SPREAD = 0.015, 0.15


@dataclass(frozen=True)
class Row:
    """A row that was trained and scored.

    Attributes:
        name: such as A1. Further trainings of the same row are named ROW_seedN.
        settings: data and recipe, without the fields that may differ between rows.
        sizes: the cells of the columns `SIZES`.
        curve: epoch and perplexity of each evaluation during training.
        perplexity: the perplexity of the model that was scored.
        bleu: the BLEU of this model, counted as in the paper.
        signature: the settings of this BLEU, as sacreBLEU writes them.
        num_parameters: the number of parameters of the model.
        precision: the precision of the training.
    """

    name: str
    settings: dict
    sizes: list[str]
    curve: list[tuple[int, float]]
    perplexity: float
    bleu: float
    signature: str
    num_parameters: int
    precision: str

    @property
    def of_paper(self) -> str:
        """The name of the row in the paper."""
        return self.name.partition("_seed")[0]


def read_rows(folder: Path) -> list[Row]:
    """Return the rows in `folder`, in the order of the table.

    Raises:
        ValueError: if there is no row, or if rows differ in settings that the table does not show.
    """
    rows = [read_row(path.parent) for path in sorted(folder.glob(f"*/{SCORES_FILE}"))]
    if not rows:
        raise ValueError(
            f"No folder in {folder} holds {SCORES_FILE}. Run scripts/run.py table3 or table3_reduced until a row is "
            f"scored."
        )
    for row in rows[1:]:
        if row.settings != rows[0].settings:
            raise ValueError(
                f"Rows must be trained on the same data, with settings that differ only in {', '.join(MAY_DIFFER)}. "
                f"{row.name} has {row.settings}, {rows[0].name} has {rows[0].settings}."
            )
    return sorted(rows, key=lambda row: list(PAPER).index(row.of_paper))


def read_row(run: Path) -> Row:
    """Return a row, read from the files of its run folder."""
    description = json.loads((run / "recipe.json").read_text(encoding="utf-8"))
    found = json.loads((run / SCORES_FILE).read_text(encoding="utf-8"))["scores"]
    scores = {score["name"]: score for score in found}
    recipe = description["recipe"]
    config = VaswaniConfig(**recipe["model"])
    log = map(json.loads, (run / "log.jsonl").read_text(encoding="utf-8").splitlines())
    return Row(
        name=run.name,
        settings={"data": description["data"]} | {name: recipe[name] for name in recipe if name not in MAY_DIFFER},
        sizes=[str(getattr(config, field)) for field in SIZES.values()],
        curve=[(line["epoch"], line["dev_perplexity"]) for line in log if "dev_perplexity" in line],
        perplexity=scores[PERPLEXITY]["value"],
        bleu=scores[BLEU]["value"],
        signature=scores[BLEU]["signature"],
        num_parameters=description["num_parameters"],
        precision={"no": "float32"}.get(description["mixed_precision"], description["mixed_precision"]),
    )


def format_scores(row: Row, base: Row) -> list[str]:
    """Return the cells of a row of the first table."""
    perplexity, bleu, *millions = PAPER[row.of_paper]
    is_base = row is base
    sizes = [size if is_base or size != of_base else "" for size, of_base in zip(row.sizes, base.sizes, strict=True)]
    epochs, last_perplexity = row.curve[-1]
    best_epoch, _ = min(row.curve, key=lambda evaluation: evaluation[-1])
    ours = (f"{epochs}", f"{best_epoch}", f"{last_perplexity:.2f}", f"{row.perplexity:.2f}")
    rest = (f"{row.bleu:.1f}", bleu, f"{row.num_parameters / 1e6:.1f}", "".join(millions))
    return [row.name, *sizes, *ours, perplexity, *rest]


@dataclass(frozen=True)
class Base:
    """The trainings of base with several seeds: mean scores, and spreads (greatest minus smallest score)."""

    perplexity: float  # mean
    bleu: float  # mean
    ppl_spread: float  # in percent of the mean
    bleu_spread: float  # in points of BLEU


def summarise_base(seeds: Sequence[Row]) -> Base:
    perplexities = [row.perplexity for row in seeds]
    bleus = [row.bleu for row in seeds]
    mean_perplexity = mean(perplexities)
    spread = 100 * (max(perplexities) - min(perplexities)) / mean_perplexity
    return Base(mean_perplexity, mean(bleus), spread, max(bleus) - min(bleus))


def format_moves(row: Row, base: Base) -> list[str]:
    """Return the cells of a row of the second table: its differences from base, here and in the paper, and verdicts."""
    paper_perplexity, paper_bleu = map(float, PAPER[row.of_paper][:2])
    paper_base_perplexity, paper_base_bleu = map(float, PAPER["base"][:2])
    percent = 100 * (row.perplexity / base.perplexity - 1)
    points = row.bleu - base.bleu
    paper_move = paper_perplexity - paper_base_perplexity
    paper_points = paper_bleu - paper_base_bleu
    return [
        row.name,
        f"{percent:+.1f} %",
        f"{100 * paper_move / paper_base_perplexity:+.1f} %",
        judge(percent, base.ppl_spread, paper_move, PAPER_PPL_SPREAD),
        f"{points:+z.2f}",
        f"{paper_points:+z.1f}",
        judge(points, base.bleu_spread, paper_points, PAPER_BLEU_SPREAD),
    ]


def judge(ours: float, spread: float, paper: float, rounding: float) -> str:
    """Return whether two differences from base agree.

    Args:
        ours: the difference here, which counts if it is larger than `spread`.
        paper: the difference in the paper, which counts if it is larger than `rounding`.

    Returns:
        "agrees" if both count and have the same sign, or if neither counts. "too close to tell" if only the
        difference in the paper counts. "does not agree" otherwise.
    """
    has_moved = abs(ours) > spread
    if has_moved != (abs(paper) > rounding):
        return "does not agree" if has_moved else "too close to tell"
    return "does not agree" if has_moved and ours * paper < 0 else "agrees"


def format_markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder with a run folder for each row")
    folder = parser.parse_args(argv).folder
    try:
        rows = read_rows(folder)
    except ValueError as error:
        parser.error(str(error))
    seeds = [row for row in rows if row.of_paper == "base"]
    print(format_markdown(("row", *SIZES, *RESULTS), [format_scores(row, (seeds or [row])[0]) for row in rows]))
    precisions = ", ".join(f"{name} ({count})" for name, count in Counter(row.precision for row in rows).items())
    print(
        f"\nPPL and BLEU are those of the model that `vaswani evaluate` scored (in table3_reduced: the best epoch). "
        f"BLEU is counted as in the paper, on tokens with compounds split: "
        f"{', '.join(sorted({row.signature for row in rows}))}. Number of rows by precision: {precisions}\n"
    )
    if len(seeds) < 2:
        print("No row is compared with base: two seeds of base must show the effect of chance. Train base_seed1 too.")
        return 0
    base = summarise_base(seeds)
    print(format_markdown(MOVES, [format_moves(row, base) for row in rows if row not in seeds]))
    print(
        f"\nBase was trained with {len(seeds)} seeds. Their mean PPL is {base.perplexity:.2f}, their mean BLEU "
        f"{base.bleu:.2f}. Between the seeds, PPL differs by up to {base.ppl_spread:.1f} % of the mean, and BLEU by up "
        f"to {base.bleu_spread:.2f} points. Here, a row has moved if it differs from the mean by more than the seeds "
        f"differ. In the paper, a row has moved if it differs from base by more than the rounding (0.01 and 0.1). A "
        f"row agrees if it moved the same way here and in the paper, or if it moved in neither. If it moved in the "
        f"paper only, it is too close to tell. If it moved here only, or the other way, it does not agree. With three "
        f"seeds, chance alone makes one row in four seem to move. Each row of the paper is one training."
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
