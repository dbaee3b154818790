"""What a host reached over SSH does for the launcher."""
