"""Settings: options, files, and where each value came from."""
