"""What doctor's reports say when they are compared. Pure: asks nobody."""
