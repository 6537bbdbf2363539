"""A model for each group of rows, after Ray Data's example "Training many models"."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped,unused-ignore]

from hocket import data

EXPECTED: Any = [("north", 2.0, 1.0, 20), ("south", -1.0, 4.0, 20), ("west", 0.5, 0.0, 20)]


def fit(group: pd.DataFrame) -> pd.DataFrame:
    slope, start = np.polyfit(group["x"], group["y"], 1)
    return pd.DataFrame(
        {
            "place": [group["place"].iloc[0]],
            "slope": [round(float(slope), 6) + 0.0],
            "start": [round(float(start), 6) + 0.0],
            "rows": [len(group)],
        }
    )


def main(folder: str) -> Any:
    lines = {"north": (2.0, 1.0), "south": (-1.0, 4.0), "west": (0.5, 0.0)}
    rows = [
        {"place": place, "x": float(x), "y": slope * x + start}
        for x in range(20)
        for place, (slope, start) in lines.items()
    ]
    models = data.from_items(rows).groupby("place").map_groups(fit, batch_format="pandas")
    return sorted((row["place"], row["slope"], row["start"], row["rows"]) for row in models.take_all())
