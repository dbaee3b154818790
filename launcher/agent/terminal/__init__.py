"""A worker's terminal, and the connection to it."""
