"""`distlaunch torchrun`: torchrun's command line on top of the agent, started once per node."""
