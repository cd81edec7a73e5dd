"""Constituency parsing as translation (section 6.3): trees, their linearisation, a parser, bracket F1."""
