"""Files that Spark has written for a data set, read again by another process or at another time."""

from __future__ import annotations

import os
from typing import Final

from hocket import data
from hocket.data.spark import receiving

CALLER: Final = "hocket.spark.read()"


def read(path: str | os.PathLike[str]) -> data.Dataset:
    """Return a data set of the files that `hocket.data.from_spark` has written, checked against their record.

    PySpark need not be installed.

    Args:
        path: The folder that was passed to `from_spark`.

    Raises:
        FileNotFoundError: `from_spark` has not written there, or did not finish; or a file is missing.
        ValueError: A file has changed. A changed length raises now, changed content when rows are read.
        TypeError: `path` is no path.

    Example:
        >>> import tempfile
        >>> from hocket import spark
        >>> spark.read(tempfile.mkdtemp())
        Traceback (most recent call last):
        FileNotFoundError: hocket.spark.read(): the folder ... has no _MANIFEST, ...
    """
    return data.Dataset(receiving.open_written(CALLER, path))
