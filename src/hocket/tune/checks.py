"""Checks of values in the records of a search."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any


def check_int(name: str, value: object, rule: str, least: int | None = None) -> None:
    """Check that a value is a whole number.

    Args:
        name: The argument's name.
        value: The value that was passed.
        rule: The rule's words in the error, such as ``"0 or more"``.
        least: The least value allowed.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, {rule}, but received {value!r}.")
    if least is not None and value < least:
        raise ValueError(f"{name} must be {rule}, but received {value}.")


def check_flag(name: str, value: object, *others: object) -> None:
    """Check that a value is True, False or one of `others`."""
    if not isinstance(value, bool) and not any(value is other for other in others):
        raise TypeError(f"{name} must be True or False, but received {value!r}. Leave it out for the default.")


def check_function(name: str, value: object) -> None:
    """Check that a value can be called, or is None."""
    if value is not None and not callable(value):
        raise TypeError(
            f"{name} must be a function of a trial, but received {value!r}. Write a function, or leave it out."
        )


def check_seconds(name: str, given: Any) -> None:
    """Check that a value is None or a time of more than 0 seconds."""
    seconds: Any = read_seconds(given)
    if seconds is not None and (isinstance(seconds, bool) or not isinstance(seconds, int | float)):
        raise TypeError(f"{name} must be a number of seconds, but received {seconds!r}. Write {name}=60.")
    if seconds is not None and not seconds > 0:
        raise ValueError(f"{name} must be more than 0 seconds, but received {seconds!r}. Leave it out for no limit.")


def read_seconds(given: float | dt.timedelta | None) -> float | None:
    """Return a time in seconds."""
    return given.total_seconds() if isinstance(given, dt.timedelta) else given


def read_output_files(given: object) -> tuple[str, str] | None:
    """Return the names of the files for the output of trials, as ``log_to_file`` says; None if there are no files."""
    if given is None or given is False:
        return None
    names = ("stdout", "stderr") if given is True else (given, given) if isinstance(given, str) else given
    if not isinstance(names, tuple | list) or len(names) != 2 or not all(isinstance(name, str) for name in names):
        raise TypeError(
            f"log_to_file must be True, a file name, or two file names, but received {given!r}. Write "
            "log_to_file=True for files 'stdout' and 'stderr' in each trial's folder."
        )
    out, err = names
    for name in names:
        if name in ("", ".", "..") or Path(name).name != name:
            raise ValueError(
                f"log_to_file names files in each trial's folder, but received {name!r}. Write a name without folders."
            )
    return out, err
