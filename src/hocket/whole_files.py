"""Files that are there whole or not at all: what was there before stays until then, also on a full disk."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def replaced(target: Path) -> Iterator[BinaryIO]:
    """Give a new file that takes a name at the end of the block, and is removed if the block fails. Its own name cannot
    be guessed, and nothing is there: a link that another user left would lead to a file of ours."""
    beside = target.with_name(f".{target.name[:200]}.{secrets.token_hex(8)}")
    try:
        with beside.open("xb") as file:
            yield file
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)


def write(path: Path, text: str) -> None:
    """Write a text in UTF-8, with a backslash for what that does not have.

    Args:
        path: A file's; what is no file, such as ``/dev/stdout``, is written to as it is.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from hocket import whole_files
        >>> path = Path(tempfile.mkdtemp(), "a.txt")
        >>> whole_files.write(path, "told")
        >>> path.read_text()
        'told'
    """
    data = text.encode("utf-8", "backslashreplace")
    target = path.resolve()
    if not target.is_file() and target.exists():
        path.write_bytes(data)
        return
    try:
        with replaced(target) as file:
            file.write(data)
    except PermissionError:
        if not target.is_file():
            raise
        target.write_bytes(data)  # it is ours to write, and its folder is not
