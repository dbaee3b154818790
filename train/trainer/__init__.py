"""The modules of `train.py`: data, model, loop, checkpoint, log. They need torch and each other, nothing else of this project."""
