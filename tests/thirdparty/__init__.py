"""The public's scripts and command lines, unchanged: the same digits under torchrun and under each backend."""
