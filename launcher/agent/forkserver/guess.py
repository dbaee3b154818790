"""How certain it is, before workers run, that they will import torch."""

NO, MAYBE, SURELY = range(3)
