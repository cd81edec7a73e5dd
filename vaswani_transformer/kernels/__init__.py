"""Faster kernels for training: the loss, and on CPUs attention and dropout."""
