"""Batch inference: a model that is loaded once in each of two actors, after Ray Data's guide "Batch inference"."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from hocket import data

EXPECTED: Any = {"rows": 96, "classes": {0: 49, 1: 47}, "first": [-0.25, 0.0, 0.5], "columns": ["score", "label"]}


class Classifier:
    """A linear model with weights that are known, as a file would have them."""

    def __init__(self, scale: float) -> None:
        self.model = torch.nn.Linear(2, 1, bias=False)
        self.model.load_state_dict({"weight": torch.tensor([[scale, -scale]])})
        self.model.eval()

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        with torch.inference_mode():
            score = self.model(torch.as_tensor(batch["features"])).numpy().reshape(-1)
        return {"score": score, "label": (score > 0).astype("int64")}


def preprocess(row: dict[str, Any]) -> dict[str, Any]:
    number = row["id"]
    other = 2 * number if number % 2 else 0
    return {"features": np.array([number, other], np.float32)}


def main(folder: str) -> Any:
    rows = data.range(96, override_num_blocks=4).map(preprocess)
    predictions = rows.map_batches(
        Classifier, fn_constructor_kwargs={"scale": 0.25}, batch_size=16, batch_format="numpy", concurrency=2
    ).materialize()
    return {
        "rows": predictions.count(),
        "classes": {row["label"]: row["count()"] for row in predictions.groupby("label").count().take_all()},
        "first": [row["score"] for row in predictions.sort("score").take_all()][47:50],
        "columns": predictions.columns(),
    }
