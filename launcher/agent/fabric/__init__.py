"""The fabric of a node: its GPUs, RDMA devices and networks, and what follows for its workers."""
