"""`distlaunch torchrun`: torchrun's command line over the agent, started once per node by whoever starts it there."""
