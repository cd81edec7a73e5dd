"""One file a command of `vaswani`: its arguments, and what it does with them."""
