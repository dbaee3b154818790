"""What is sent to the nodes: the agent, the scripts, the user's files."""
