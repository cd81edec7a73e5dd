"""Model cards, uploads and the demo page."""
