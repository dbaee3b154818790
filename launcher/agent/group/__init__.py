"""The worker group as its process on one node sees it: rendezvous with the other nodes, restarts, and messages of a failure."""
