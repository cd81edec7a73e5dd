"""The function of the model, faster, where the package is installed."""
