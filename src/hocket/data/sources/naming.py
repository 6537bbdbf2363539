"""The names of written files, where a user chooses them."""

from __future__ import annotations

from typing import Any

from hocket.data import blocks


class FilenameProvider:
    """Names of files, for ``filename_provider=`` of writers. A class that is derived from it has one of the methods.

    A name must be another one for each task, and the same if a task is done again.

    Args:
        dataset_uuid: For programs written for Ray: kept as it is.
        file_format: The same.
    """

    def __init__(self, dataset_uuid: str | None = None, file_format: str | None = None) -> None:
        self._dataset_uuid = dataset_uuid
        self._file_format = file_format

    def get_filename_for_task(self, write_uuid: str, task_index: int) -> str:
        """Return the name of the file of a task; more files of one get ``_000001`` and so on before the ending."""
        raise NotImplementedError

    def get_filename_for_block(self, block: object, write_uuid: str, task_index: int, block_index: int) -> str:
        """Return the name of the file of a block."""
        return _count(self.get_filename_for_task(write_uuid, task_index), block_index)

    def get_filename_for_row(
        self, row: blocks.Row, write_uuid: str, task_index: int, block_index: int, row_index: int
    ) -> str:
        """Return the name of the file of a row, as `Dataset.write_images` writes one for each."""
        return _count(self.get_filename_for_task(write_uuid, task_index), row_index, always=True)

    def choose(self, part: blocks.Block, run: str, number: int, at: int, *, is_row: bool) -> str:
        """Return the name of a file.

        Args:
            part: What is written into it.
            run: Another text each time that something is written.
            number: Which task writes it.
            at: Which of the task's files it is.
            is_row: Whether each row has a file.

        Raises:
            TypeError: The method returns no text.
        """
        if is_row:
            name: Any = self.get_filename_for_row(next(part.list_rows()), run, number, 0, at)
        else:
            name = self.get_filename_for_block(part.to_batch("pyarrow"), run, number, at)
        if not isinstance(name, str) or not name or "/" in name:
            raise TypeError(
                f"A filename_provider returns the name of a file, but {type(self).__name__} gave {name!r:.80}."
            )
        return name


def _count(name: str, at: int, *, always: bool = False) -> str:
    if not at and not always:
        return name
    stem, dot, ending = name.rpartition(".")
    return f"{stem}_{at:06}{dot}{ending}" if dot else f"{name}_{at:06}"
