"""What travels with the weights: files that import each other, torch and transformers only."""
