"""scikit-learn's digits: 1440 to learn from, and 357 to be tested with."""

import numpy as np
from sklearn.datasets import load_digits

BATCH, EPOCHS, RATE, DECAY = 96, 25, 0.15, 0.9


def load():
    """The images and numbers to learn from, and those for the test; the same on all ranks."""
    images, numbers = load_digits(return_X_y=True)
    order = np.random.default_rng(1).permutation(len(images))
    images, numbers = (images[order] / 16).astype("float32"), numbers[order].astype("int32")
    return images[:1440], numbers[:1440], images[1440:], numbers[1440:]


def weights():
    """Those of two layers, at the start."""
    random = np.random.default_rng(2)
    shapes = (64, 128), (128,), (128, 10), (10,)
    return [random.normal(0, 0.15 if len(shape) > 1 else 0, shape).astype("float32") for shape in shapes]


def batches(count, rank, size):
    """A rank's part of each batch, in the order that all ranks have."""
    random = np.random.default_rng(3)
    for _ in range(EPOCHS):
        order = random.permutation(count)
        for start in range(0, count, BATCH):
            yield order[start : start + BATCH][rank::size]
