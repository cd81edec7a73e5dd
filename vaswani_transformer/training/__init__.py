"""How the paper trains: schedule, checkpoints, the loop."""
