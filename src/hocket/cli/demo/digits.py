"""The data: 1,797 handwritten digits of 8 x 8 pixels, which scikit-learn ships."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

TRAIN_COUNT = 1440
"""80 % of them, rounded to what 2, 3, 4, 5, 6, 8, 9 and 10 ranks can share evenly. The other 357 are held out."""
SPLIT_SEED = 1797
"""The split is the same for every seed, so that accuracies can be compared."""

Arrays = dict[str, npt.NDArray[Any]]


def load_digits() -> Arrays:
    """Return images, scaled to 0..1 with shape (n, 1, 8, 8), and labels, of the training and of the held-out digits."""
    from sklearn import datasets  # takes a second, and only the process that loads the data pays for it

    images, labels = datasets.load_digits(return_X_y=True)
    order = np.random.default_rng(SPLIT_SEED).permutation(len(images))
    images = (images / 16.0).astype(np.float32).reshape(-1, 1, 8, 8)[order]
    labels = labels.astype(np.int64)[order]
    return {
        "train_images": images[:TRAIN_COUNT],
        "train_labels": labels[:TRAIN_COUNT],
        "test_images": images[TRAIN_COUNT:],
        "test_labels": labels[TRAIN_COUNT:],
    }
