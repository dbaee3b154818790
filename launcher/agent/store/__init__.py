"""The run's key-value store: its server on node 0, and its clients."""
