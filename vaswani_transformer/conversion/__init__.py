"""Models of other systems as ours, and ours as theirs: `vaswani convert`."""
