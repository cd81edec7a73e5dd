"""Convert models of other systems to this package, and back: `vaswani convert`."""
