"""The commands of `vaswani`: `parsers` says what each takes, and the file of its name carries it out."""
