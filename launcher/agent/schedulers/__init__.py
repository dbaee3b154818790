"""What a node learns of its place in a run from the scheduler that started it."""
