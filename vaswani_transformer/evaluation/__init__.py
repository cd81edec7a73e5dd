"""Compute scores of translations, the BLEU of the paper, and perplexity."""
