"""The operations, timing and output of collectives.py, also used by doctor.py. Needs only torch."""
