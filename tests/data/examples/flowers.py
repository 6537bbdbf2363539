"""A CSV file, cut in two and prepared by preprocessors that have learnt from one part, after Ray Data's guide "Using
preprocessors"."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from hocket import data
from hocket.data.preprocessors import Chain, Concatenator, LabelEncoder, MinMaxScaler, OneHotEncoder

EXPECTED: Any = {
    "sizes": (120, 30),
    "columns": ["species", "features"],
    "first": [0.0, 0.0, 1.0, 0.0],
    "labels": [50, 50, 20],
    "ranges": (0.0, 1.0),
    "test": 2,
}


def main(folder: str) -> Any:
    path = f"{folder}/flowers.csv"
    with Path(path).open("w", encoding="utf-8") as file:
        file.write("length,width,place,species\n")
        for number in range(150):
            species = ("setosa", "versicolor", "virginica")[number // 50]
            place = "wood" if number % 2 else "field"
            file.write(f"{1 + number % 5},{2 + number % 9},{place},{species}\n")
    rows = data.read_csv(path)
    train, test = rows.train_test_split(test_size=0.2)
    chain = Chain(
        MinMaxScaler(columns=["length", "width"]),
        OneHotEncoder(columns=["place"]),
        LabelEncoder(label_column="species"),
        Concatenator(columns=["length", "width", "place"], output_column_name="features", flatten=True),
    )
    ready = chain.fit_transform(train)
    batch = ready.take_batch(120)
    tested = chain.transform(test).take_batch(30)
    return {
        "sizes": (train.count(), test.count()),
        "columns": ready.columns(),
        "first": batch["features"][0].tolist(),
        "labels": np.bincount(batch["species"]).tolist(),
        "ranges": (float(batch["features"].min()), float(batch["features"].max())),
        "test": int(tested["species"][0]),
    }
