"""Figures 3 to 5: attention maps, drawings, a page to explore, scores of heads, word alignments."""
