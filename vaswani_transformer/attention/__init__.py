"""Figures 3 to 5: attention maps, drawings, a page to explore, what each head does."""
