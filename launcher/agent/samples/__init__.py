"""Samples: what a node and its ranks use, and how far they are, measured every few seconds."""
