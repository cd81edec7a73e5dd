"""Whole files and locks for work that may be stopped at any moment."""
