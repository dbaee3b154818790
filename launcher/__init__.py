"""distlaunch: start distributed PyTorch training anywhere, the same way."""

__version__ = "0.1.0"
