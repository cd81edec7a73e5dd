"""A folder that `evaluate.load` loads."""
