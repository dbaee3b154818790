"""Output for people on a terminal."""
