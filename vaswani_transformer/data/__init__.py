"""The training data path: text in, batches of token ids out."""
