"""Print the rows of Table 3 that were trained and scored, beside the paper's.

A second table compares how each row moved away from base with the paper, and with the spread of base over seeds.

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

SCORES_FILE = "dev_scores.json"  # of `vaswani evaluate --json`
PERPLEXITY, BLEU = "perplexity", "BLEU, tokenised, compounds split as in the paper"
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
    settings: dict  # data and recipe, without what may differ between rows
    sizes: list[str]  # its cells in the columns `SIZES`
    curve: list[tuple[int, float]]  # epochs and perplexity of each evaluation during training
    perplexity: float  # of the model that was scored
    bleu: float  # as the paper counted it
    signature: str  # of that BLEU
    num_parameters: int
    precision: str  # of the training

    @property
    def of_paper(self) -> str:
        """The name of the row in the paper."""
        return self.name.partition("_seed")[0]


def read_rows(folder: Path) -> list[Row]:
    """Read the rows in `folder`, in the order of the table.

    Raises:
        ValueError: if there is none, or if rows differ in more than the table says.
    """
    rows = [read_row(path.parent) for path in sorted(folder.glob(f"*/{SCORES_FILE}"))]
    if not rows:
        raise ValueError(f"{folder} holds no row with a {SCORES_FILE}; run scripts/run.py table3 first")
    for row in rows[1:]:
        if row.settings != rows[0].settings:
            raise ValueError(f"{row.name} was not trained as {rows[0].name}: {row.settings}, {rows[0].settings}")
    return sorted(rows, key=lambda row: list(PAPER).index(row.of_paper))


def read_row(run: Path) -> Row:
    """Read a row from the files of its run."""
    description = json.loads((run / "recipe.json").read_text(encoding="utf-8"))
    found = json.loads((run / SCORES_FILE).read_text(encoding="utf-8"))["scores"]
    scores = {score["name"]: score for score in found}
    recipe = description["recipe"]
    config = VaswaniConfig(**recipe["model"])
    log = map(json.loads, (run / "log.jsonl").read_text(encoding="utf-8").splitlines())
    return Row(
        name=run.name,
        settings={"data": description["data"]} | {name: recipe[name] for name in recipe if name not in OF_A_ROW},
        sizes=[str(getattr(config, field)) for field in SIZES.values()],
        curve=[(line["epoch"], line["dev_perplexity"]) for line in log if "dev_perplexity" in line],
        perplexity=scores[PERPLEXITY]["value"],
        bleu=scores[BLEU]["value"],
        signature=scores[BLEU]["signature"],
        num_parameters=description["num_parameters"],
        precision={"no": "float32"}.get(description["mixed_precision"], description["mixed_precision"]),
    )


def format_scores(row: Row, base: Row) -> list[str]:
    """Return the cells of a row of the table."""
    perplexity, bleu, millions = PAPER[row.of_paper]
    is_base = row is base
    sizes = [size if is_base or size != usual else "" for size, usual in zip(row.sizes, base.sizes, strict=True)]
    epochs, last = row.curve[-1]
    best_epoch, _ = min(row.curve, key=lambda evaluation: evaluation[-1])
    ours = (f"{epochs}", f"{best_epoch}", f"{last:.2f}", f"{row.perplexity:.2f}")
    rest = (f"{row.bleu:.1f}", f"{bleu:.1f}", f"{row.num_parameters / 1e6:.1f}", f"{millions or ''}")
    return [row.name, *sizes, *ours, f"{perplexity:.2f}", *rest]


@dataclass(frozen=True)
class Base:
    """Means of the trainings of base with several seeds, and their spread from the least to the greatest."""

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
    paper_perplexity, paper_bleu, _ = PAPER[row.of_paper]
    usual_perplexity, usual_bleu, _ = PAPER["base"]
    percent, points = 100 * (row.perplexity / base.perplexity - 1), row.bleu - base.bleu
    paper_move, paper_points = paper_perplexity - usual_perplexity, paper_bleu - usual_bleu
    return [
        row.name,
        f"{percent:+.1f} %",
        f"{100 * paper_move / usual_perplexity:+.1f} %",
        judge(percent, base.ppl_spread, paper_move, PAPER_PPL_SPREAD),
        f"{points:+z.2f}",
        f"{paper_points:+z.1f}",
        judge(points, base.bleu_spread, paper_points, PAPER_BLEU_SPREAD),
    ]


def judge(ours: float, spread: float, paper: float, rounding: float) -> str:
    """Judge whether two differences have one direction: up, down, or none within the spread or the rounding."""
    has_moved = abs(ours) > spread
    if has_moved != (abs(paper) > rounding):
        return "does not agree" if has_moved else "too close to tell"
    return "does not agree" if has_moved and ours * paper < 0 else "agrees"


def format_markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="holds a folder for each row")
    rows = read_rows(parser.parse_args(argv).folder)
    seeds = [row for row in rows if row.of_paper == "base"]
    print(format_markdown(("row", *SIZES, *RESULTS), [format_scores(row, (seeds or [row])[0]) for row in rows]))
    precisions = ", ".join(f"{name} ({count})" for name, count in Counter(row.precision for row in rows).items())
    print(
        f"\nPPL and BLEU are those of the model that was scored, and BLEU is of tokens, compounds split as in the "
        f"paper: {', '.join(sorted({row.signature for row in rows}))}. Precision, with rows: {precisions}\n"
    )
    if len(seeds) < 2:
        print("No row is compared with base: a second seed of base (base_seed1) must show the effect of chance")
        return 0
    base = summarise_base(seeds)
    print(format_markdown(MOVES, [format_moves(row, base) for row in rows if row not in seeds]))
    print(
        f"\nBase, {len(seeds)} seeds: PPL {base.perplexity:.2f} within {base.ppl_spread:.1f} %, BLEU {base.bleu:.2f} "
        f"within {base.bleu_spread:.2f}, from the least to the greatest. A row has moved if it differs from the mean "
        f"by more than that here, or by more than the rounding (0.01 and 0.1) in the paper. It agrees if both moved "
        f"the same way or neither moved; if it moved in the paper only, it is too close to tell. With three seeds, one "
        f"judgement in four finds such a move where there is none; each row of the paper is one training."
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
