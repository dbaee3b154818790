"""A worker's terminal, and the way to it."""
