"""A folder of pictures, brought to one size and made numbers, after Ray Data's guide "Working with images"."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from hocket import data

EXPECTED: Any = {
    "count": 12,
    "shape": (8, 8, 3),
    "dtype": "float32",
    "labels": {"dark": 6, "light": 6},
    "means": {"dark": 0.25098040699958801, "light": 0.7529411911964417},
}


def make_pictures(folder: str) -> None:
    for label, grey in (("dark", 64), ("light", 192)):
        Path(folder, label).mkdir(parents=True)
        for number in range(6):
            size = (16 + 4 * number, 16, 3)
            Image.fromarray(np.full(size, grey, np.uint8)).save(f"{folder}/{label}/{number}.png")


def add_label(row: dict[str, Any]) -> dict[str, Any]:
    return {"image": row["image"], "label": Path(row["path"]).parent.name}


def scale(batch: dict[str, Any]) -> dict[str, Any]:
    return {"image": batch["image"].astype(np.float32) / 255, "label": batch["label"]}


def main(folder: str) -> Any:
    make_pictures(f"{folder}/pictures")
    pictures = data.read_images(f"{folder}/pictures", size=(8, 8), mode="RGB", include_paths=True)
    ready = pictures.map(add_label).map_batches(scale).materialize()
    batch = ready.take_batch(12)
    return {
        "count": ready.count(),
        "shape": batch["image"].shape[1:],
        "dtype": str(batch["image"].dtype),
        "labels": {row["label"]: row["count()"] for row in ready.groupby("label").count().take_all()},
        "means": {row["label"]: float(row["image"][0, 0, 0]) for row in ready.take_all()},
    }
