"""Archives of pictures and their classes, after Ray Data's examples for WebDataset."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from hocket import data

EXPECTED: Any = {
    "samples": 30,
    "keys": ["00000", "00001", "00002"],
    "classes": {0: 10, 1: 10, 2: 10},
    "shape": (4, 4, 3),
    "captions": ["number 0", "number 1"],
    "brightest": 29,
}


def make_archive(path: Path, start: int, stop: int) -> None:
    with tarfile.open(path, "w") as archive:
        for number in range(start, stop):
            picture = io.BytesIO()
            Image.fromarray(np.full((4, 4, 3), number, np.uint8)).save(picture, "png")
            parts = {
                "cls": str(number % 3).encode(),
                "json": json.dumps({"caption": f"number {number}"}).encode(),
                "png": picture.getvalue(),
            }
            for ending, content in parts.items():
                member = tarfile.TarInfo(f"{number:05}.{ending}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))


def describe(row: dict[str, Any]) -> dict[str, Any]:
    return {"key": row["__key__"], "label": row["cls"], "image": row["png"], "caption": row["json"]["caption"]}


def main(folder: str) -> Any:
    path = Path(folder, "archives")
    path.mkdir()
    for number in range(3):
        make_archive(path / f"{number}.tar", 10 * number, 10 * number + 10)
    rows = data.read_webdataset(str(path)).map(describe).materialize()
    found = sorted(rows.take_all(), key=lambda row: row["key"])
    return {
        "samples": rows.count(),
        "keys": [row["key"] for row in found[:3]],
        "classes": {row["label"]: row["count()"] for row in rows.groupby("label").count().take_all()},
        "shape": found[0]["image"].shape,
        "captions": [row["caption"] for row in found[:2]],
        "brightest": max(int(row["image"].max()) for row in found),
    }
