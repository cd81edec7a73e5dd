"""The code that is saved with the weights. It runs where only torch and transformers are installed."""
