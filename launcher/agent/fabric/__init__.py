"""The fabric of a node: what it has of GPUs, RDMA devices and networks, and what follows for its workers."""
