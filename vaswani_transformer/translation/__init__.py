"""Translate many sentences, whole files and streams with a trained model."""
