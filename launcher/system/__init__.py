"""The local machine: files, programs, the installation."""
