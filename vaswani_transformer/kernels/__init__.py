"""Faster loss, attention and dropout for training, and restricted self-attention in linear time."""
