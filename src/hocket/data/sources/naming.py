"""The names of written files, chosen by a user."""

from __future__ import annotations

from typing import Any

from hocket.data import blocks


class FilenameProvider:
    """Names of files, for ``filename_provider=`` of writers. A subclass defines one of the methods.

    Each task must get a different name, and a repeated task the same name again.

    Args:
        dataset_uuid: For programs written for Ray: kept unchanged.
        file_format: For programs written for Ray: kept unchanged.
    """

    def __init__(self, dataset_uuid: str | None = None, file_format: str | None = None) -> None:
        self._dataset_uuid = dataset_uuid
        self._file_format = file_format

    def get_filename_for_task(self, write_uuid: str, task_index: int) -> str:
        """Return the name of a task's file. Further files of the task get ``_000001`` and so on before the ending."""
        raise NotImplementedError

    def get_filename_for_block(self, block: object, write_uuid: str, task_index: int, block_index: int) -> str:
        """Return the name of a block's file."""
        return _count(self.get_filename_for_task(write_uuid, task_index), block_index)

    def get_filename_for_row(
        self, row: blocks.Row, write_uuid: str, task_index: int, block_index: int, row_index: int
    ) -> str:
        """Return the name of a row's file: `Dataset.write_images` writes a file for each row."""
        return _count(self.get_filename_for_task(write_uuid, task_index), row_index, always=True)

    def choose(self, part: blocks.Block, run: str, number: int, at: int, *, is_row: bool) -> str:
        """Return the name of a file.

        Args:
            part: The rows of the file.
            run: A text that is different for each write.
            number: The number of the task that writes the file.
            at: The number of the file among the task's files.
            is_row: Whether each row has a file of its own.

        Raises:
            TypeError: The user's method does not return the name of a file.
        """
        if is_row:
            name: Any = self.get_filename_for_row(next(part.list_rows()), run, number, 0, at)
        else:
            name = self.get_filename_for_block(part.to_batch("pyarrow"), run, number, at)
        if not isinstance(name, str) or not name or "/" in name:
            raise TypeError(
                f"A filename_provider must return the name of a file, without a slash, but {type(self).__name__} "
                f"returned {name!r:.80}."
            )
        return name


def _count(name: str, at: int, *, always: bool = False) -> str:
    if not at and not always:
        return name
    stem, dot, ending = name.rpartition(".")
    return f"{stem}_{at:06}{dot}{ending}" if dot else f"{name}_{at:06}"
