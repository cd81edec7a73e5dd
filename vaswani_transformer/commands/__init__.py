"""The commands of `vaswani`, a file each: its docstring is the help, `add_arguments` its options, `run` the work.

What takes long to import is imported in `run`, so that help and usage errors appear at once. A command whose options
must fit together has `find_fault`, which says why they do not.
"""

from . import (
    align,
    attention,
    average,
    card,
    check,
    convert,
    cost,
    evaluate,
    export,
    heads,
    parse,
    prepare,
    push,
    recipes,
    score,
    train,
    translate,
)

COMMANDS = (  # in the order of the help
    *(recipes, prepare, train, average, translate, check, score, evaluate, parse, cost),
    *(attention, heads, align, export, convert, card, push),
)
