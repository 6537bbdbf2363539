"""What a trial prints goes to files in its folder, and where it went before."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TextIO, final


@final
class _Copying:
    """A stream whose text goes to a file, too, while there is one.

    Args:
        stream: Everything else is its.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.file: TextIO | None = None

    def write(self, text: str) -> int:
        if self.file is not None:
            self.file.write(text)
        return self.stream.write(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> object:
        return getattr(self.stream, name)


_known: dict[str, _Copying] = {}
"""Those of this process, by the stream's name: what a handler of logging has got in one trial writes to the files of
those after it."""


def _find(name: str, stream: TextIO) -> _Copying:
    if name not in _known or _known[name].stream is not stream:
        _known[name] = _Copying(stream)
    return _known[name]


@contextlib.contextmanager
def copied(folder: Path, names: tuple[str, str] | None) -> Iterator[None]:
    """For the duration of a block, add what is printed to files.

    What goes past the methods of Python's ``sys.stdout`` and ``sys.stderr``, as from C, does not.

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
        streams = [_find(name, stream) for name, stream in zip(("stdout", "stderr"), before, strict=True)]
        for stream, name in zip(streams, names, strict=True):
            stream.file = files[name]
        sys.stdout, sys.stderr = streams
        try:
            yield
        finally:
            sys.stdout, sys.stderr = before
            for stream in streams:
                stream.file = None
