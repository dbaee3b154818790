"""Environments that are brought to nodes."""
