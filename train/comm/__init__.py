"""The operations, timing and output of collectives.py, also used by doctor.py and the trainer. Needs only torch."""
