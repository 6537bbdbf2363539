"""Files from a Spark data frame: Spark's executors write them, and only committed files count.

An executor writes below ``_temporary``. Spark moves a file to its final name when it commits the task that wrote it, so
of a task that ran twice, or failed after its last row, one file stays. (This is version 1 of Hadoop's committer, which
this module sets; version 2 moves files while a task may still fail.) ``_SUCCESS`` marks the whole job as committed.
Spark also counts the rows of committed tasks, to compare with the files: an executor may have written to its own disk.
"""

from __future__ import annotations

import os
from typing import Any, Final

from hocket.data.spark import access, kinds, manifest
from hocket.stores import places

CALLER: Final = "from_spark()"

_SETTINGS: Final = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # the default has no time zone, and counts in days
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",  # else days before 1582 follow another calendar
    "spark.sql.parquet.writeLegacyFormat": "false",
}

_OPTIONS: Final = {
    "mapreduce.fileoutputcommitter.algorithm.version": "1",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "true",
}

_DONE: Final = "_SUCCESS"


def receive(frame: object, path: str | os.PathLike[str] | None) -> list[Any]:
    """Have Spark write a data frame, and return the reads of the files.

    Args:
        frame: The data frame.
        path: An empty or missing folder; None for a temporary one.
    """
    found = access.check_frame(CALLER, frame)
    _check_shape(found)
    kinds.check_frame(CALLER, found.schema)
    with access.open_folder(CALLER, found.sparkSession, path) as folder:
        access.check_empty(CALLER, folder.place)
        with access.changed(found.sparkSession, _SETTINGS):
            count = _write(found, folder.address)
        records = _list_written(folder.place, count)
        manifest.write(folder.place, records)
        return manifest.plan_reads(CALLER, folder.place, records)


def _check_shape(frame: access.Frame) -> None:
    names = list(frame.columns)
    twice = sorted({name for name in names if names.count(name) > 1})
    if frame.isStreaming:
        raise ValueError(f"{CALLER}: the data frame is a stream, which has no end. Read what it has written so far.")
    if not names:
        raise ValueError(f"{CALLER}: the data frame has no columns, which a file cannot keep. Select one.")
    if twice:
        raise ValueError(f"{CALLER}: the data frame has the column {twice[0]!r} twice. Rename one with toDF(...).")


def open_written(caller: str, path: str | os.PathLike[str]) -> list[Any]:
    """Return the reads of files that Spark wrote for an earlier `receive`."""
    place = access.find_folder(caller, path).place
    return manifest.plan_reads(caller, place, manifest.read(caller, place))


def _write(frame: access.Frame, address: str) -> int:
    """Have Spark write a data frame, and return how many rows its committed tasks received."""
    functions, sql = access.load(CALLER, "pyspark.sql.functions"), access.load(CALLER)
    counted = sql.Observation()
    watched = frame.observe(counted, functions.count(functions.lit(1)).alias("rows"))
    watched.write.options(**_OPTIONS).mode("append").parquet(address)
    return int(counted.get["rows"])


def _list_written(place: places.Place, count: int) -> list[manifest.Record]:
    if place.filesystem.get_file_info(f"{place.path}/{_DONE}").size is None:
        raise OSError(
            f"{CALLER}: Spark wrote to {place.shown!r}, but this process finds no {_DONE} in the folder of that name. "
            "Pass path= as a folder that this process and all of Spark's machines see."
        )
    records = manifest.note(CALLER, place)
    rows = sum(record.rows for record in records)
    if rows != count:
        raise OSError(
            f"{CALLER}: the tasks that Spark committed received {count} rows, but the files in {place.shown!r} have "
            f"{rows}. Either some executors write to a folder that this process does not see, or another program "
            "writes there. Pass path= as a folder that all of them see."
        )
    return records
