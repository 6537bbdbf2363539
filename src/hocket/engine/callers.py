"""Which line of the user's program is at work: for messages that say who made something."""

from __future__ import annotations

import sys

PACKAGE = __file__.removesuffix("engine/callers.py")
"""The folder of our own code, with a slash behind it."""

UNKNOWN = "hocket"
"""Said where no line of the user's is on the stack."""


def find_line() -> str:
    """Return ``file:line`` of the innermost code that is not ours. Costs some 2 us."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(PACKAGE):
        if frame.f_back is None:
            return UNKNOWN
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def find_stack_level() -> int:
    """Return the `stacklevel` with which a warning of our caller points at the innermost code that is not ours."""
    frame = sys._getframe(1)
    level = 1
    while frame.f_code.co_filename.startswith(PACKAGE) and frame.f_back is not None:
        frame = frame.f_back
        level += 1
    return level


def name_function(function: object, method: str = "") -> str:
    """Return the name of a function, or of a class's method, as Ray gives it: ``app.Counter.add``. The program's own
    module is named like its file."""
    named = getattr(function, method, None) if method else function
    module = getattr(function, "__module__", None) or "?"
    code = getattr(named, "__code__", None)
    if module == "__main__" and code is not None and code.co_filename.endswith(".py"):
        module = code.co_filename.rpartition("/")[2].removesuffix(".py")
    return ".".join([module, getattr(function, "__name__", type(function).__name__), *([method] if method else ())])


def describe_function(function: object) -> str:
    """Return ``file:line`` of a function's definition; its name if it has no code of its own. A file of ours is named
    from our folder on."""
    code = getattr(function, "__code__", None)
    if code is None:
        return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', type(function).__name__)}"
    file = code.co_filename
    shown = f"hocket/{file.removeprefix(PACKAGE)}" if file.startswith(PACKAGE) else file
    return f"{shown}:{code.co_firstlineno}"
