"""Training as in the paper: recipes, schedule, checkpoints and the loop."""
