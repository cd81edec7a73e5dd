"""Scores with their signatures, BLEU as the paper counted it, perplexity."""
