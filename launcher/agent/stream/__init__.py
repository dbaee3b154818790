"""The agent stream on its node: bounded, and written without blocking the agent."""
