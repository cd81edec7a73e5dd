"""Write model cards, and upload models."""
