"""What is refused where there is no Spark, or before it is asked."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from hocket import data, exceptions, train
from hocket import spark as hocket_spark
from hocket.data.sources import writing


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pyspark", "pyspark.sql"):
        monkeypatch.setitem(sys.modules, name, None)


def build_trainer(folder: Path) -> train.DataParallelTrainer:
    return train.DataParallelTrainer(lambda: None, run_config=train.RunConfig(storage_path=str(folder)))


@pytest.mark.usefixtures("no_spark")
def test_a_missing_spark_is_named_with_the_extra(tmp_path: Path) -> None:
    frame: Any = None
    needed = (
        r"needs PySpark, and 'pyspark(\.sql)?' cannot be imported. Run pip install 'hocket\[spark\]'; it needs Java 17"
    )
    with pytest.raises(exceptions.MissingExtraError, match=rf"from_spark\(\) {needed}"):
        data.from_spark(frame)
    with pytest.raises(exceptions.MissingExtraError, match=rf"to_spark\(\) {needed}"):
        data.range(3).to_spark(frame)
    with pytest.raises(exceptions.MissingExtraError, match=rf"predict\(\) {needed}"):
        hocket_spark.predict(frame, lambda batch: batch, schema="id long")
    with pytest.raises(exceptions.MissingExtraError, match=rf"hocket.spark.run\(\) {needed}"):
        hocket_spark.run(build_trainer(tmp_path))


def test_what_is_no_trainer_or_function_is_refused() -> None:
    with pytest.raises(TypeError, match=r"hocket.spark.run\(\) takes a trainer, but received <function"):
        hocket_spark.run(lambda: None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"predict\(\) takes a function, but received 3"):
        hocket_spark.predict(None, 3, schema="x long")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="batch_size must be 1 or more rows"):
        hocket_spark.predict(None, len, schema="x long", batch_size=0)
    with pytest.raises(ValueError, match="batch_format"):
        hocket_spark.predict(None, len, schema="x long", batch_format="json")
    with pytest.raises(ValueError, match="fn_constructor_args are for a class"):
        hocket_spark.predict(None, len, schema="x long", fn_constructor_args=[1])


def test_a_folder_that_spark_has_not_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"hocket.spark.read\(\): the folder .* has no _MANIFEST"):
        hocket_spark.read(tmp_path)
    (tmp_path / writing.MANIFEST).write_text("{")
    with pytest.raises(
        ValueError, match=r"hocket.spark.read\(\): _MANIFEST of .* is damaged, or was not written by Hocket"
    ):
        hocket_spark.read(tmp_path)
    with pytest.raises(TypeError, match="path must name a folder, but received None"):
        hocket_spark.read(None)  # type: ignore[arg-type]
