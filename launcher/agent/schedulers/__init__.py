"""How a node learns its place in a run from the scheduler that started it."""
