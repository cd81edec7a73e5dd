"""The commands of `vaswani`, one in each file.

The docstring of a file is the help of its command, `add_arguments` declares the options, and `run` does the work.

Slow imports stand inside `run`, so that help and usage errors appear at once. A command in which some options exclude
or need each other also has `find_fault`, which returns a message about such a fault, or None.
"""

from importlib import import_module

NAMES = (  # in the order of the help
    "recipes prepare train average translate check score evaluate parse cost "
    "attention heads align export convert card push"
)
COMMANDS = {name: import_module(f".{name}", __name__) for name in NAMES.split()}
