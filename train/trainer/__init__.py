"""The modules of `train.py`: data, model, loop, checkpoint, log. They need torch, but no other part of this project."""
