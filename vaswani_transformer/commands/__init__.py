"""The commands of `vaswani`: `parsers` defines the arguments of each, and the file of its name runs it."""
