"""Model cards and uploads."""
