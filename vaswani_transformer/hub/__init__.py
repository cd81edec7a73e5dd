"""Model cards, uploads, Spaces and the demo page."""
