"""Check on every tree of bracketed files that reading, writing and linearising lose nothing.

    python scripts/check_treebank.py treebank_craft/train.mrg treebank_wsj_sample/wsj_sample.mrg

Checks about 700 trees per second. Exits with 1 at the first tree that comes back changed.
"""

import sys
from pathlib import Path

from vaswani_transformer.parsing.linearisation import linearise, rebuild
from vaswani_transformer.parsing.trees import Tree, format_tree, parse_trees, read_trees, strip


def comes_back(tree: Tree) -> bool:
    """Return True if `tree` is read as it was written, and its stripped form rebuilt from both linearisations."""
    is_reread = list(parse_trees([format_tree(tree)], name="text")) == [tree]
    stripped = strip(tree)
    forms = [] if stripped is None else [linearise(stripped, copy_words=copied) for copied in (False, True)]
    return is_reread and all(rebuild(form, stripped.leaves) == stripped for form in forms)


def main() -> int:
    for name in sys.argv[1:]:
        count = 0
        for count, tree in enumerate(read_trees(Path(name)), start=1):
            if not comes_back(tree):
                print(f"{name}: tree {count} comes back changed: {format_tree(tree)}")
                return 1
        print(f"{name}: all {count} trees come back")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
