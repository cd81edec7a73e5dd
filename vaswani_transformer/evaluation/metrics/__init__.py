"""BLEU for the library evaluate, to be loaded from these folders; and as the `compute_metrics` of a Trainer."""
