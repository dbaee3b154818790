"""Runs and their records."""
