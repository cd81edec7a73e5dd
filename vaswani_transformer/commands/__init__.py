"""The commands of `vaswani`, one in each file: the docstring is the help, `add_arguments` the options, `run` the work.

Slow imports stand inside `run`, so that help and usage errors appear at once. A command whose options must fit together
also has `find_fault`. It returns why the options do not fit, or None.
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
