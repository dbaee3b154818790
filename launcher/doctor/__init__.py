"""Evaluation of doctor's reports. Pure: no I/O."""
