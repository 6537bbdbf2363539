"""Search for the parts of a value that cannot travel to another process."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from typing import Any, TextIO

from hocket.engine import pickling, unsendable


@dataclass(frozen=True, slots=True, eq=False)
class FailureTuple:
    """A part that cannot travel, while all of its own parts that were searched can."""

    obj: object
    """The part itself."""
    name: str
    """The part's name where it was found: of a variable, an attribute, an index."""
    parent: Any
    """The object that holds the part; None for the inspected value itself."""
    path: str
    """The way from the inspected value to the part."""

    def __repr__(self) -> str:
        return f"FailTuple({self.name} [path={self.path}, obj={self.obj!r}, parent={self.parent!r}])"


def inspect_serializability(
    base_obj: object, name: str | None = None, depth: int = 3, print_file: TextIO | None = None
) -> tuple[bool, set[FailureTuple]]:
    """Find the parts of a value or function that cannot travel, and print them.

    Args:
        base_obj: The value or function to send.
        name: Its name in the report. Default: its own name or its representation.
        depth: How many steps to search into it at most.
        print_file: The stream to print to. Default: stdout.

    Returns:
        Whether the value can travel, and the parts that cannot.

    Raises:
        ValueError: `depth` is below 0.

    Example:
        >>> import io, threading
        >>> import hocket
        >>> lock = threading.Lock()
        >>> can_travel, failures = hocket.util.inspect_serializability(
        ...     {"lock": lock}, name="state", print_file=io.StringIO()
        ... )
        >>> can_travel, [failure.path for failure in failures]
        (False, ["state['lock']"])
    """
    if depth < 0:
        raise ValueError(f"depth must be 0 or more steps, but received {depth!r}. Leave it out for 3.")
    name = name or getattr(base_obj, "__name__", None) or repr(base_obj)
    failures: list[FailureTuple] = []
    if not pickling.can_travel(base_obj):
        _collect(FailureTuple(base_obj, name, None, name), depth, failures, set())
    _print_report(name, failures, print_file or sys.stdout)
    return not failures, set(failures)


def _collect(found: FailureTuple, depth: int, failures: list[FailureTuple], seen: set[int]) -> None:
    if id(found.obj) in seen:
        return
    seen.add(id(found.obj))
    parts = [(step, part) for step, part in unsendable.list_parts(found.obj) if not pickling.can_travel(part)]
    if depth == 0 or not parts:
        failures.append(found)
    for step, part in parts if depth else []:
        _collect(FailureTuple(part, _build_name(step), found.obj, found.path + step), depth - 1, failures, seen)


def _build_name(step: str) -> str:
    """Return the variable's or attribute's name in a step such as `` -> closure variable 'x'`` or ``.x``."""
    quoted = re.search(r"variable '(.*)'$|attribute '(.*)'$", step)
    return next(filter(None, quoted.groups())) if quoted else step.removeprefix(".").removeprefix(" -> ")


def _print_report(name: str, failures: list[FailureTuple], stream: TextIO) -> None:
    if not failures:
        stream.write(f"{name} can be sent to another process.\n")
        return
    stream.write(f"{name} cannot be sent to another process. The causes:\n")
    for failure in failures:
        kind = type(failure.obj)
        advice = unsendable.get_advice(failure.obj)
        stream.write(f"  {failure.path} is a {kind.__module__}.{kind.__name__}. Remedy: {advice}.\n")
