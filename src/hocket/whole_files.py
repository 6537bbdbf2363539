"""Files that are there whole or not at all: what was there before stays until then, also on a full disk."""

from __future__ import annotations

import os
from pathlib import Path


def write(path: Path, text: str) -> None:
    """Write a text in UTF-8, with a backslash for what that does not have.

    Args:
        path: A file's; what is no file, such as ``/dev/stdout``, is written to as it is.

    Raises:
        OSError: It cannot be written; what was there is as before.

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
    beside = target.with_name(f".{target.name[:200]}.{os.getpid()}")
    try:
        beside.write_bytes(data)
        beside.replace(target)
    except PermissionError:
        if not target.is_file():
            raise
        target.write_bytes(data)  # it is ours to write, and its folder is not
    finally:
        beside.unlink(missing_ok=True)
