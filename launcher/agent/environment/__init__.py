"""The environment travels: a Python environment on every node's local disk, before its workers start (`--env-ship`)."""
