"""Predictions in Spark's tasks: what `map_batches` gives, from models that are made once in each worker."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hocket import data
from hocket import spark as hocket_spark

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(180),
    pytest.mark.filterwarnings("ignore"),  # Spark's own, of pandas and of sockets that it leaves to the collector
    pytest.mark.usefixtures("rows_session"),
]


class Model:
    """Notes each time that it is made, and the process."""

    def __init__(self, folder: str, weight: float = 1.0) -> None:
        with Path(folder, str(os.getpid())).open("a") as file:
            file.write("made\n")
        self.weight = weight

    def __call__(self, batch: Any, offset: int = 0) -> Any:
        return {"id": batch["id"], "guess": np.sqrt(batch["id"]) * self.weight + offset}


def test_a_class_gives_what_map_batches_gives_and_is_made_once_in_a_worker(spark: Any, tmp_path: Path) -> None:
    frame = spark.range(0, 1000, 1, 8)
    how: dict[str, Any] = {
        "fn_constructor_args": [str(tmp_path)],
        "fn_constructor_kwargs": {"weight": 0.7},
        "fn_kwargs": {"offset": 3},
    }
    guessed = hocket_spark.predict(frame, Model, schema="id long, guess double", batch_size=64, **how)
    found = sorted((row.id, row.guess) for row in guessed.collect())
    guessed.count()  # the same workers, or others
    times = [len(path.read_text().split()) for path in tmp_path.iterdir()]
    assert set(times) == {1}
    assert 1 <= len(times) <= 4
    wanted = data.from_spark(frame).map_batches(Model, batch_size=64, concurrency=1, **how).take_all()
    assert found == sorted((row["id"], row["guess"]) for row in wanted)  # to the bit


@pytest.mark.parametrize("batch_format", ["numpy", "pandas", "pyarrow"])
def test_batches_have_the_form_and_the_size_that_is_asked_for(batch_format: str, spark: Any) -> None:
    def look(batch: Any) -> Any:
        count = batch.num_rows if batch_format == "pyarrow" else len(batch["id"])
        return {"kind": [type(batch).__name__], "count": [count]}

    frame = spark.range(0, 100, 1, 1)
    before = spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch")
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "30")
    try:
        found = hocket_spark.predict(
            frame, look, schema="kind string, count int", batch_size=40, batch_format=batch_format
        ).collect()
    finally:
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", before)
    assert {row.kind for row in found} == {{"numpy": "dict", "pandas": "DataFrame", "pyarrow": "Table"}[batch_format]}
    assert [row["count"] for row in found] == [40, 40, 20]


def test_functions_may_give_several_batches_or_none(spark: Any) -> None:
    def twice(batch: Any) -> Iterator[Any]:
        for _ in range(2):
            yield {"id": batch["id"][batch["id"] % 2 == 0]}

    found = hocket_spark.predict(spark.range(0, 10, 1, 5), twice, schema="id int").collect()
    assert sorted(row.id for row in found) == [0, 0, 2, 2, 4, 4, 6, 6, 8, 8]


def test_times_decimals_and_missing_values_are_given_back(spark: Any) -> None:
    frame = spark.sql(
        "SELECT TIMESTAMP'2024-02-29 01:02:03.000004' at, CAST(1.5 AS DECIMAL(9,2)) price, CAST(NULL AS STRING) text, "
        "ARRAY(1, NULL) list"
    )
    found = hocket_spark.predict(frame, lambda batch: batch, schema=frame.schema, batch_format="pyarrow")
    assert found.collect() == frame.collect()


def test_what_does_not_fit_the_schema_is_named(spark: Any) -> None:
    frame = spark.range(0, 3, 1, 1)
    with pytest.raises(Exception, match=r"returned the columns \['z'\], but the schema has \['y'\]"):
        hocket_spark.predict(frame, lambda batch: {"z": batch["id"]}, schema="y long").collect()
    with pytest.raises(
        Exception, match=r"returned string in the column 'y', but not all of its values fit the schema's type int64"
    ):
        hocket_spark.predict(frame, lambda batch: {"y": ["one"] * len(batch["id"])}, schema="y long").collect()
    for schema, make in (("y decimal(10,2)", lambda ids: ids + 1.005), ("y boolean", lambda ids: ids)):
        with pytest.raises(Exception, match=r"would be (truncated|read as true or false)"):
            hocket_spark.predict(frame, lambda batch, make=make: {"y": make(batch["id"])}, schema=schema).collect()
    with pytest.raises(ValueError, match="the data frame has no columns"):
        hocket_spark.predict(frame.select(), lambda batch: batch, schema="y long")


def test_arrays_and_maps_are_given_back(spark: Any) -> None:
    frame = spark.range(0, 2, 1, 1)
    deep = hocket_spark.predict(frame, lambda batch: {"x": np.ones((2, 2, 3))}, schema="x array<array<float>>")
    assert [row.x for row in deep.collect()] == [[[1.0] * 3] * 2] * 2
    for value in ({"a": 1.0}, [("a", 1.0)]):
        found = hocket_spark.predict(
            frame, lambda batch, value=value: {"x": [value] * len(batch["id"])}, schema="x map<string,double>"
        )
        assert [row.x for row in found.collect()] == [{"a": 1.0}] * 2
