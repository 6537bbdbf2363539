"""What a trial prints goes to files in its folder, and where it went before."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO, final


@final
class _Copying:
    """A stream whose text goes to a file, too.

    Args:
        stream: Everything else is its.
        file: The file.
    """

    def __init__(self, stream: TextIO, file: TextIO) -> None:
        self._stream, self._file = stream, file

    def write(self, text: str) -> int:
        with contextlib.suppress(ValueError):  # a thread that is left writes after the trial's end
            self._file.write(text)
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def copied(folder: Path, names: tuple[str, str] | None) -> Iterator[None]:
    """For the duration of a block, add what is printed to files.

    What goes past Python's ``sys.stdout`` and ``sys.stderr``, as from C, does not.

    Args:
        folder: Where they are.
        names: Of the files for both streams, which may be one; None for none.
    """
    if names is None:
        yield
        return
    before = sys.stdout, sys.stderr
    with contextlib.ExitStack() as stack:
        folder.mkdir(parents=True, exist_ok=True)
        files = {name: stack.enter_context((folder / name).open("a", buffering=1)) for name in names}
        sys.stdout, sys.stderr = (_Copying(stream, files[name]) for stream, name in zip(before, names, strict=True))
        try:
            yield
        finally:
            sys.stdout, sys.stderr = before
