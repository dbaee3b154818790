"""This machine as the launcher uses it: files, programs, the installation."""
