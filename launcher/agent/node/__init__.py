"""The agent proper: one process per node, which never imports torch."""
