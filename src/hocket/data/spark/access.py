"""Access to Spark, and the folder that Spark and this process both see."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias, final

from hocket import extras
from hocket._base import texts
from hocket.data import arrow
from hocket.data.execution import scratch
from hocket.stores import places

Session: TypeAlias = Any
"""A `pyspark.sql.SparkSession`."""

Frame: TypeAlias = Any
"""A `pyspark.sql.DataFrame`."""

_ONE_AT_A_TIME: Final = threading.Lock()
"""A lock for changes of settings: these belong to a session, and several threads may use one."""


def load(caller: str, module: str = "pyspark.sql") -> Any:
    """Return a module of PySpark.

    Raises:
        MissingExtraError: It is not installed.
    """
    return extras.load(module, caller, "PySpark", "Run pip install 'hocket[spark]'; it needs Java 17 or newer.")


def check_frame(caller: str, frame: object) -> Frame:
    """Return a Spark data frame, or raise if the argument is none."""
    if not isinstance(frame, load(caller).DataFrame):
        raise TypeError(
            f"{caller} takes a Spark DataFrame, but received {texts.name_kind(frame)}: {frame!r:.80}. Make one with "
            "spark.table('name') or spark.read; for a pandas DataFrame, use hocket.data.from_pandas()."
        )
    return frame


def check_session(caller: str, session: object) -> Session:
    """Return a Spark session, or raise if the argument is none."""
    load(caller)
    if isinstance(session, type) or not (hasattr(session, "createDataFrame") and hasattr(session, "read")):
        raise TypeError(
            f"{caller} takes a SparkSession, but received {session!r:.80}. Write "
            "SparkSession.builder.getOrCreate(), or spark in a notebook that has one."
        )
    return session


def is_connected(session: Session) -> bool:
    """Return whether Spark runs in another process, which this one reaches by Spark Connect."""
    return type(session).__module__.startswith("pyspark.sql.connect")


def is_local(session: Session) -> bool:
    """Return whether Spark runs on this machine alone."""
    return not is_connected(session) and session.conf.get("spark.master", "").split("[")[0] == "local"


@final
@dataclass(frozen=True, kw_only=True)
class Folder:
    """A folder for files, with its names on both sides."""

    place: places.Place
    """The folder for Arrow."""
    address: str
    """The folder for Spark."""


def find_folder(caller: str, path: str | os.PathLike[str]) -> Folder:
    """Return the folder at a user's path."""
    given: object = path
    if not isinstance(given, str | os.PathLike) or not os.fspath(given):
        raise TypeError(
            f"{caller}: path must name a folder, but received {path!r:.80}. Write path='/shared/rows', or an address "
            "such as s3a://bucket/rows."
        )
    place = places.find_place(path, None, caller)
    is_here = isinstance(place.filesystem, arrow.load(caller, "pyarrow.fs").LocalFileSystem)
    return Folder(place=place, address=f"file://{place.path}" if is_here else place.shown)


def check_empty(caller: str, place: places.Place) -> None:
    """Raise if a folder has files."""
    fs = arrow.load(caller, "pyarrow.fs")
    if place.filesystem.get_file_info(fs.FileSelector(place.path, allow_not_found=True)):
        raise FileExistsError(
            f"{caller}: the folder {place.shown!r} has files already, whose rows would mix with the new ones. Choose "
            "another folder, or remove this one; hocket.spark.read() reads the rows of an earlier from_spark()."
        )


@contextlib.contextmanager
def open_folder(caller: str, session: Session, path: str | os.PathLike[str] | None) -> Iterator[Folder]:
    """Yield a folder to write into: the user's, or a temporary one. A temporary folder stays until this process ends,
    since both sides read it later; it is removed at once if the block fails."""
    if path is not None:
        yield find_folder(caller, path)
        return
    if not is_local(session):
        raise ValueError(
            f"{caller} received no path, but Spark runs on other machines, which cannot see this machine's temporary "
            "files. Pass path='/shared/rows' or path='s3a://bucket/rows': a folder that all of them see."
        )
    temporary = scratch.keep_folder()
    try:
        yield find_folder(caller, Path(temporary.path, "rows"))
    except BaseException:
        temporary.remove()
        raise


@contextlib.contextmanager
def changed(session: Session, settings: Mapping[str, str]) -> Iterator[None]:
    """Change a session's settings for the duration of a block."""
    with _ONE_AT_A_TIME:
        before = {name: session.conf.get(name, None) for name in settings}
        try:
            for name, value in settings.items():
                session.conf.set(name, value)
            yield
        finally:
            for name, kept in before.items():
                if kept is None:
                    session.conf.unset(name)
                else:
                    session.conf.set(name, kept)
