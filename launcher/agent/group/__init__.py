"""The worker group's process on one node: rendezvous with the other nodes, restarts, and failure reports."""
