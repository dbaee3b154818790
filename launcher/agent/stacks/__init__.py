"""What the processes of a run do right now: Python stacks, or the kernel's words for one that cannot answer."""
