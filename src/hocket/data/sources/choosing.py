"""Choice and order of the files that a reader takes, and the columns that their folders' names say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, final

import numpy as np

from hocket.data.sources import filesystems, partitions

ON_ERROR: Final = ("raise", "skip")


@final
@dataclass(frozen=True)
class FileShuffleConfig:
    """A random order of files, in place of the order of their names.

    Args:
        seed: The seed of the order. Default: a random seed, chosen once when the data set is made.
        reseed_after_execution: For programs written for Ray: has no effect; a data set has the same order each time.

    Raises:
        ValueError: The seed is no whole number, or negative.
    """

    seed: int | None = None
    reseed_after_execution: bool = True

    def __post_init__(self) -> None:
        seed: object = self.seed
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or seed < 0):
            raise ValueError(
                f"seed must be a whole number from 0, but received {self.seed!r}. Write FileShuffleConfig(7)."
            )


@final
@dataclass(frozen=True, kw_only=True)
class Choice:
    """A reader's keywords that choose its files.

    Args:
        filesystem: The file system with the files.
        ignore_missing_paths: Whether to leave out a path that does not exist.
        file_extensions: The endings of the files' names; ``[""]`` takes all. Default: the reader's own.
        partitioning: How the names of folders become columns; None: no columns.
        partition_filter: A choice of files by the names of their folders.
        shuffle: The order of the files: None, ``"files"`` or a `FileShuffleConfig`.
        arrow_open_stream_args: Keywords of Arrow's ``open_input_stream`` for opening the files, such as
            ``{"compression": "gzip"}``. Default: by the endings of their names.

    Raises:
        TypeError: An argument is of the wrong type.
    """

    filesystem: object = None
    ignore_missing_paths: bool = False
    file_extensions: Sequence[str] | None = None
    partitioning: partitions.Partitioning | None = partitions.DEFAULT
    partition_filter: partitions.PathPartitionFilter | None = None
    shuffle: object = None
    arrow_open_stream_args: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        several: Any = self.file_extensions
        kind: Any = self.partitioning
        chosen: object = self.partition_filter
        if several is not None and (isinstance(several, str) or not all(isinstance(one, str) for one in several)):
            raise TypeError(f"file_extensions must be a list of texts, but received {several!r:.80}. Write ['csv'].")
        if kind is not None and not isinstance(kind, partitions.Partitioning):
            raise TypeError(
                f"partitioning must be a Partitioning, but received {kind!r:.80}. Write Partitioning('hive')."
            )
        if chosen is not None and not isinstance(chosen, partitions.PathPartitionFilter):
            raise TypeError(
                f"partition_filter must be a PathPartitionFilter, but received {chosen!r:.80}. Write "
                "PathPartitionFilter.of(function)."
            )
        if self.shuffle is not None and self.shuffle != "files" and not isinstance(self.shuffle, FileShuffleConfig):
            raise TypeError(f"shuffle must be 'files' or a FileShuffleConfig, but received {self.shuffle!r:.80}.")
        opening: object = self.arrow_open_stream_args
        if opening is not None and not (isinstance(opening, Mapping) and {*opening} <= {"compression", "buffer_size"}):
            raise TypeError(
                f"arrow_open_stream_args takes 'compression' and 'buffer_size', but received {opening!r:.80}. Write "
                "{'compression': 'gzip'}."
            )


@final
@dataclass(frozen=True)
class Chosen:
    """The files that a reader reads.

    Args:
        filesystem: The file system with the files.
        files: The files, in reading order.
        values: For each file, the columns that its folders' names say.
    """

    filesystem: filesystems.FileSystem
    files: list[filesystems.File]
    values: list[Mapping[str, Any]]


def choose(caller: str, paths: object, endings: Sequence[str], choice: Choice) -> Chosen:
    """Find the files that a reader reads."""
    if choice.file_extensions is not None:
        endings = tuple(f".{one.removeprefix('.').lower()}" if one else "" for one in choice.file_extensions)
    shared, found = filesystems.list_files(
        caller, paths, choice.filesystem, endings, ignore_missing_paths=choice.ignore_missing_paths
    )
    if choice.arrow_open_stream_args is not None:
        found = [replace(file, opening=dict(choice.arrow_open_stream_args)) for file in found]
    if choice.partition_filter is not None:
        found = _filter(caller, found, choice.partition_filter)
    if choice.shuffle is not None:
        seed = choice.shuffle.seed if isinstance(choice.shuffle, FileShuffleConfig) else None
        found = [found[at] for at in np.random.default_rng(seed).permutation(len(found))]
    return Chosen(shared, found, list(partitions.list_values(found, choice.partitioning)))


def _filter(
    caller: str, found: Sequence[filesystems.File], chosen: partitions.PathPartitionFilter
) -> list[filesystems.File]:
    kept = [file for file in found if chosen.filter_fn(chosen.partitioning.read(file.path, file.root))]
    if not kept:
        raise FileNotFoundError(f"{caller}: partition_filter leaves none of {len(found)} files. Check its function.")
    return kept


def check_on_error(on_error: object) -> None:
    """Raise if `on_error` is neither ``"raise"`` nor ``"skip"``."""
    if on_error not in ON_ERROR:
        raise ValueError(f"on_error must be 'raise' or 'skip', but received {on_error!r}.")
