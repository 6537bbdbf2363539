"""Cleaning and summing up Parquet files, after Ray Data's example "Processing NYC taxi data"."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd  # type: ignore[import-untyped,unused-ignore]

from hocket import data

EXPECTED: Any = {
    "read": 1000,
    "kept": 748,
    "columns": ["passengers", "distance", "fare", "per_mile"],
    "by_passengers": [(1, 252, 5.0), (2, 248, 8.0), (3, 248, 11.0)],
    "total": 5972.0,
    "longest": 4.0,
    "again": 748,
}


def make_files(folder: str) -> None:
    Path(folder).mkdir(parents=True)
    for month in range(4):
        frame = pd.DataFrame(
            {
                "passengers": [number % 4 for number in range(250)],
                "distance": [1.0 + number % 4 for number in range(250)],
                "fare": [2.0 + 3.0 * (number % 4) for number in range(250)],
                "note": [f"trip {number}" for number in range(250)],
            }
        )
        frame.to_parquet(Path(folder, f"{month:02}.parquet"))


def main(folder: str) -> Any:
    make_files(f"{folder}/raw")
    trips = data.read_parquet(f"{folder}/raw", columns=["passengers", "distance", "fare"])
    kept = trips.filter(lambda row: row["passengers"] > 0)
    kept = kept.add_column("per_mile", lambda frame: frame["fare"] / frame["distance"])
    means = kept.groupby("passengers").mean("fare")
    counts = {row["passengers"]: row["count()"] for row in kept.groupby("passengers").count().take_all()}
    kept.write_parquet(f"{folder}/clean")
    return {
        "read": trips.count(),
        "kept": kept.count(),
        "columns": kept.columns(),
        "by_passengers": sorted(
            (row["passengers"], counts[row["passengers"]], row["mean(fare)"]) for row in means.take_all()
        ),
        "total": kept.sum("fare"),
        "longest": kept.max("distance"),
        "again": data.read_parquet(f"{folder}/clean").count(),
    }
