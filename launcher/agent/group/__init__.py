"""The worker group as one node's process of it sees it: rendezvous with the other nodes, restarts, and word of a failure."""
