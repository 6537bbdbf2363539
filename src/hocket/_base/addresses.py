"""Refuses addresses of storage elsewhere where a folder of this machine is meant, instead of making a folder of that
name."""

from __future__ import annotations

import os
import re

_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+(.*)", re.DOTALL)
"""One slash is enough: `pathlib.Path` makes one of two."""


def refuse(path: str | os.PathLike[str], what: str) -> None:
    """Raise if a path is an address.

    Args:
        path: What was given.
        what: For the message: the argument.
    """
    found = _ADDRESS.match(os.fspath(path))
    if found is None:
        return
    scheme, rest = found.groups()
    remedy = f"Write {'/' + rest!r}." if scheme == "file" else "Mount it, and pass the folder where it is mounted."
    raise ValueError(f"{what} must be a path of this machine, but received the address {os.fspath(path)!r}. {remedy}")
