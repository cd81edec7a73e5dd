import argparse

from ..training.recipes import TABLE_3

EN_DE, EN_FR = "WMT 2014 English-German, 4.5M pairs", "WMT 2014 English-French, 36M pairs"
BASE_COST, BIG_COST = "8 P100, 12 hours (the paper)", "8 P100, 3.5 days (the paper)"
# Millions of parameters with a vocabulary as large as asked for, row of the paper, data, hardware and hours: the
# paper's, or those of model_cards/ and scripts/benchmarks/results/.
FACTS: dict[str, tuple[float, str, str, str]] = {
    "base_en_de": (63.0, "table 2, base", EN_DE, BASE_COST),
    "big_en_de": (214.2, "table 2, big", EN_DE, BIG_COST),
    "big_en_fr": (209.1, "table 2, big", EN_FR, BIG_COST),
    "multi30k_tiny": (2.6, "", "20,000 to 100,000 pairs; Multi30k", "2 CPU cores, 2.5 to 3.5 hours"),
    "iwslt14_de_en": (36.6, "", "100,000 to 500,000 pairs; IWSLT 2014", ""),
    "general_en_de_small": (8.1, "", "100,000 to 500,000 pairs", "1 CPU core, bfloat16, 1.6 hours"),
    "everyday_en_de": (9.1, "", "100,000 to 1,000,000 short pairs", "2 CPU cores, bfloat16, 4 hours"),
    "phrasebook": (1.2, "", "the built-in synthetic corpus", "2 CPU cores, 4 minutes"),
    "parsing_wsj": (133.9, "table 4, WSJ only", "Penn Treebank, 40,000 trees", ""),
    "parsing_semi_supervised": (150.3, "table 4, semi-supervised", "17M trees", ""),
    "parsing_small": (4.7, "", "30,000 trees", "1 CPU core, bfloat16, 1.2 hours"),
}
TABLE_3_MILLIONS = {
    "B1": 56.0,
    "B2": 58.3,
    "C1": 33.6,
    "C2": 48.3,
    "C3": 77.7,
    "C4": 26.8,
    "C5": 163.8,
    "C6": 50.5,
    "C7": 88.2,
    "E": 64.1,
    "big": 214.2,
}
for row in TABLE_3:
    FACTS[f"table3_{row}"] = (TABLE_3_MILLIONS.get(row, 63.0), f"table 3, {row}", EN_DE, "")


def run(args: argparse.Namespace) -> None:
    line = "{:24}{:>11}  {:26}{:38}{}"
    print(line.format("recipe", "parameters", "row of the paper", "for", "trained on"))
    for name, (millions, row, data, hardware) in FACTS.items():
        print(line.format(name, f"{millions:.1f}M", row, data, hardware).rstrip())
