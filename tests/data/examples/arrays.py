"""Arrays, put beside each other, sorted, sampled and written, after Ray Data's guide "Working with tensors"."""

from __future__ import annotations

from typing import Any

import numpy as np

from hocket import data

EXPECTED: Any = {
    "shape": (50, 2, 3),
    "unique": [0, 1, 2, 3, 4],
    "sorted": [49, 48, 47],
    "zipped": ["id", "data"],
    "both": 100,
    "parts": [20, 20, 10],
    "again": [0.0, 6.0, 12.0],
    "blocks": [10, 10, 10, 10, 10],
}


def main(folder: str) -> Any:
    numbers = data.range(50)
    arrays = data.from_numpy(np.arange(300, dtype=np.float32).reshape(50, 2, 3))
    labels = numbers.map_batches(lambda batch: {"label": batch["id"] % 5})
    arrays.write_numpy(f"{folder}/arrays", column="data")
    again = data.read_numpy(f"{folder}/arrays")
    cut = numbers.repartition(5).materialize()
    return {
        "shape": arrays.take_batch(50)["data"].shape,
        "unique": sorted(labels.unique("label")),
        "sorted": [row["id"] for row in numbers.sort("id", descending=True).take(3)],
        "zipped": numbers.zip(arrays).columns(),
        "both": numbers.union(numbers).count(),
        "parts": [part.count() for part in numbers.split_at_indices([20, 40])],
        "again": sorted(float(row["data"][0, 0]) for row in again.take_all())[:3],
        "blocks": [len(batch["id"]) for batch in cut.iter_batches(batch_size=None)],
    }
