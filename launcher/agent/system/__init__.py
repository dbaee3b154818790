"""Processes, cgroups and files of this machine."""
