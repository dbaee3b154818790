"""What is done with a run while it goes on."""
