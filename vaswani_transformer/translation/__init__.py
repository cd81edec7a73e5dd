"""Many sentences, whole files and streams through a trained model."""
