"""The commands of `vaswani`, one in each file.

The docstring of a file is the help of its command, `add_arguments` declares the options, and `run` does the work.

Slow imports stand inside `run`, so that help and usage errors appear at once. If options of a command
exclude or need each other, the file also has `find_fault`. It returns an error message, or None if the given options
fit together.
"""

from importlib import import_module

NAMES = (  # in the order of the help
    "recipes prepare train average translate check score evaluate parse cost "
    "attention heads align export convert card push"
)
COMMANDS = {name: import_module(f".{name}", __name__) for name in NAMES.split()}
