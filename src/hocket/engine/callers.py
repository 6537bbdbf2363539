"""The current line of the user's program, for messages that say which line made an object."""

from __future__ import annotations

import sys

PACKAGE = __file__.removesuffix("engine/callers.py")
"""The folder of our own code, with a slash at its end."""

UNKNOWN = "hocket"
"""The result of `find_line` if no line of the user's is on the stack."""


def find_line() -> str:
    """Return ``file:line`` of the innermost code that is not ours. It takes some 2 us."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(PACKAGE):
        if frame.f_back is None:
            return UNKNOWN
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def find_stack_level() -> int:
    """Return the `stacklevel` for a warning of our caller, so that it names the innermost code that is not ours."""
    frame = sys._getframe(1)
    level = 1
    while frame.f_code.co_filename.startswith(PACKAGE) and frame.f_back is not None:
        frame = frame.f_back
        level += 1
    return level


def name_function(function: object, method: str = "") -> str:
    """Return the name of a function, or of a class's method, as in Ray: ``app.Counter.add``. For code in ``__main__``,
    the module's name is the name of its file."""
    named = getattr(function, method, None) if method else function
    module = getattr(function, "__module__", None) or "?"
    code = getattr(named, "__code__", None)
    if module == "__main__" and code is not None and code.co_filename.endswith(".py"):
        module = code.co_filename.rpartition("/")[2].removesuffix(".py")
    return ".".join([module, getattr(function, "__name__", type(function).__name__), *([method] if method else ())])


def describe_function(function: object) -> str:
    """Return ``file:line`` of a function's definition; its name if it has no Python code. The path of a file of ours
    begins at our folder."""
    code = getattr(function, "__code__", None)
    if code is None:
        return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', type(function).__name__)}"
    file = code.co_filename
    shown = f"hocket/{file.removeprefix(PACKAGE)}" if file.startswith(PACKAGE) else file
    return f"{shown}:{code.co_firstlineno}"
