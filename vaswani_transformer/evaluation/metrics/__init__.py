"""The paper's BLEU for the library evaluate, to be loaded from its folder; and BLEU as `compute_metrics`."""
