"""A check that a path is no address of remote storage: else Hocket would make a local folder of that name."""

from __future__ import annotations

import os
import re

_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+(.*)", re.DOTALL)
"""One slash is enough: `pathlib.Path` turns two slashes into one."""


def refuse(path: str | os.PathLike[str], what: str) -> None:
    """Raise if a path is an address.

    Args:
        path: The path that the user gave.
        what: The name of the argument, for the message.
    """
    found = _ADDRESS.match(os.fspath(path))
    if found is None:
        return
    scheme, rest = found.groups()
    remedy = f"Write {'/' + rest!r}." if scheme == "file" else "Mount it, and pass the folder where it is mounted."
    raise ValueError(f"{what} must be a path of this machine, but received the address {os.fspath(path)!r}. {remedy}")
