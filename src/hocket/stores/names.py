"""Names from outside, joined to a folder without leaving it.

Another user may have written an archive, a manifest, a log or a bucket with names such as ``../../.bashrc`` or
``/etc/passwd``. Every such name goes through this module before it becomes a path.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from hocket import exceptions
from hocket._base import texts

_DRIVE: Final = re.compile(r"[A-Za-z]:(?:[\\/]|$)")
_MOST_BYTES: Final = 255
"""The longest name in Linux's file systems."""


def find_fault(name: object) -> str | None:
    """Return why a name is no path below a folder, such as ``"a/b.npy"``; None if it is such a path.

    Example:
        >>> from hocket.stores import names
        >>> names.find_fault("a/b.npy"), names.find_fault("../b.npy")
        (None, "it contains '..'")
    """
    if not isinstance(name, str):
        return "it is not a string"
    if "\0" in name:
        return "it contains a NUL character"
    if name.startswith("/") or _DRIVE.match(name):
        return "it is an absolute path"
    parts = re.split(r"[\\/]", name)
    strange = next((part for part in parts if part in (".", "..")), None)
    if strange is not None:
        return f"it contains {strange!r}"
    return "it is empty or has an empty part" if "" in name.split("/") else None


def find_folder_fault(name: object) -> str | None:
    """Return why a name from a program cannot be the name of one new folder; None if it can."""
    fault = find_fault(name)
    if fault is not None:
        return fault
    given = str(name)
    if "/" in given:
        return "it contains a slash"
    try:
        size = len(given.encode())
    except UnicodeEncodeError:
        return "it contains half of a surrogate pair, which UTF-8 cannot hold"
    return f"it has {size:,} bytes; the limit is {_MOST_BYTES}" if size > _MOST_BYTES else None


def check(name: object, where: str, *, is_single: bool = False) -> str:
    """Check that a name leads to something below a folder, and return the name.

    Args:
        name: The name as found.
        where: The holder of the name, for the message, as in ``"The bucket 's3://b'"``.
        is_single: Whether the name must be an entry of the folder itself.
    """
    fault = find_fault(name) or ("it contains a slash" if is_single and "/" in str(name) else None)
    if fault is not None:
        raise exceptions.UnsafeNameError(
            f"{where} has the name {texts.safe_repr(name)}, which is refused: {fault}. A name must stay in its "
            f"folder, as {'model' if is_single else 'weights/a.npy'!r} does. Nothing was read, written or removed; "
            "rename or remove that entry, or use another source."
        )
    return str(name)


def join(folder: str | os.PathLike[str], name: object, where: str, *, is_single: bool = False) -> Path:
    """Return the path of a name in a folder of this machine, to write or remove something there.

    Args:
        folder: The folder, which may be a link itself. Nothing below it on the path may be a link.
        name: See `check`.
        where: See `check`.
        is_single: See `check`.
    """
    path = Path(folder)
    for part in check(name, where, is_single=is_single).split("/"):
        path /= part
        if path.is_symlink():
            raise exceptions.UnsafeNameError(
                f"{where} has the name {texts.safe_repr(name)}, but {str(path)!r} is a link to "
                f"{str(path.readlink())!r}: a write or removal under that name would happen elsewhere. Remove the "
                "link, or choose another folder."
            )
    return path
