"""The paper's model: what travels with its weights, and imports nothing else of this package."""
