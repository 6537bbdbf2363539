"""Errors for values that cannot be sent to another process: they name the part at fault, and what to do instead."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Any

from hocket._base import texts
from hocket.engine import pickling

_LOCK = "create the lock inside the function, or keep it in an actor"
_CONNECTION = "open the connection inside the function or the actor's constructor"
_FILE = "pass the path and open the file inside the function"
_START = "start it inside the function, and pass what it needs"
_VALUES = "pass the values that you need from it"
_ADVICE: dict[str, str] = {
    "_thread.lock": _LOCK,
    "_thread.RLock": _LOCK,
    "threading.Condition": "create the condition inside the function, or keep it in an actor",
    "threading.Event": "wait for an object reference instead, or keep the event in an actor",
    "threading.Semaphore": "limit the tasks with num_cpus or resources={...}, or keep the semaphore in an actor",
    "threading.Barrier": "wait for object references instead, or keep the barrier in an actor",
    "threading.Thread": "start the thread inside the function",
    "_thread._local": "create the thread-local state inside the function",
    "_threading_local.local": "create the thread-local state inside the function",
    "hocket.core.generators.ObjectRefGenerator": "take the references from it first, and send these as a list",
    "concurrent.futures._base.Executor": "create the pool inside the function, or use remote functions instead",
    "concurrent.futures._base.Future": "pass its result(), or an object reference instead",
    "multiprocessing.synchronize.SemLock": _LOCK,
    "multiprocessing.queues.Queue": "keep the queue in an actor",
    "multiprocessing.pool.Pool": "create the pool inside the function, or use remote functions instead",
    "queue.Queue": "keep the queue in an actor",
    "_queue.SimpleQueue": "keep the queue in an actor",
    "asyncio.events.AbstractEventLoop": "get the loop inside the function, with asyncio.get_running_loop()",
    "_asyncio.Future": "await it first and pass the result, or pass an object reference",
    "socket.socket": _CONNECTION,
    "ssl.SSLContext": "create the context inside the function or the actor's constructor",
    "sqlite3.Connection": _CONNECTION,
    "sqlite3.Cursor": "fetch the rows and pass them, or open the connection inside the function",
    "subprocess.Popen": _START,
    "builtins.generator": "pass a list, or create the generator inside the function",
    "builtins.async_generator": "pass a list, or create the generator inside the function",
    "builtins.coroutine": "pass the arguments and create the coroutine inside the function",
    "builtins.frame": "pass the values that you need instead of the frame",
    "builtins.traceback": "pass traceback.format_tb(traceback)",
    "builtins.module": "import the module inside the function",
    "weakref.ReferenceType": "pass the object itself",
    "weakref.ProxyType": "pass the object itself",
    "contextvars.ContextVar": "pass its value, with .get(), and set it inside the function",
    "_contextvars.ContextVar": "pass its value, with .get(), and set it inside the function",
    "mmap.mmap": "pass the path and map the file inside the function, or put a numpy array of the bytes",
    "_ctypes._Pointer": "pass the value that it points to, with .contents",
    "_ctypes.CFuncPtr": "load the library inside the function",
    "re.Match": "pass match.groups() or match.group()",
    "_hashlib.HASH": "pass its digest(), or the bytes",
    "_io._IOBase": _FILE,
    "posix.ScandirIterator": "pass a list of the paths",
    "tkinter.Misc": "keep windows in the driver, and pass what they need",
}
"""The advice by the full name of a class. A subclass has its parent's advice."""

_YIELD = "use yield in the function, or return a list"
_RESULT_ADVICE: dict[str, str] = {
    "hocket.core.generators.ObjectRefGenerator": "take the references from it, and return these as a list",
    "concurrent.futures._base.Future": "return its result()",
    "_asyncio.Future": "await it, and return its result",
    "sqlite3.Cursor": "return the rows, with .fetchall()",
    "builtins.generator": _YIELD,
    "builtins.async_generator": _YIELD,
    "builtins.coroutine": "await it, or run it with asyncio.run(...), and return its result",
    "builtins.frame": "return the values that you need from it",
    "builtins.traceback": "return traceback.format_tb(traceback)",
    "builtins.module": "return the module's name",
    "weakref.ReferenceType": "return the object itself",
    "weakref.ProxyType": "return the object itself",
    "contextvars.ContextVar": "return its value, with .get()",
    "_contextvars.ContextVar": "return its value, with .get()",
    "mmap.mmap": "return the path, or a numpy array of the bytes",
    "_ctypes._Pointer": "return the value that it points to, with .contents",
    "re.Match": "return match.groups() or match.group()",
    "_hashlib.HASH": "return its digest()",
    "_io._IOBase": "return the path, or the contents of the file",
    "posix.ScandirIterator": "return a list of the paths",
}
"""The advice for results and items of functions; other classes have `_DEFAULT_RESULT_ADVICE`."""

_DEFAULT_RESULT_ADVICE = "return plain data, or keep it in an actor"
_DEFAULT_ADVICE = "create it inside the function or in an actor's constructor, or give its class a __reduce__ method"
_SEARCH_DEPTH = 8


def explain_safely(explain: Callable[[object, str, Exception], str], value: object, what: str, error: Exception) -> str:
    """Return the message for a value that cannot be encoded, even if the value's attributes raise."""
    try:
        return explain(value, what, error)
    except Exception:  # a user's attributes may raise anything
        return f"Cannot send {what} to another process: {texts.describe(error)}. Remedy: {_DEFAULT_ADVICE}."


def get_advice(culprit: object) -> str:
    """Return the advice for a value that cannot travel."""
    return _get_optional_advice(culprit) or _DEFAULT_ADVICE


def _get_result_advice(culprit: object) -> str:
    return _get_optional_advice(culprit, _RESULT_ADVICE) or _DEFAULT_RESULT_ADVICE


def explain_failure(value: object, what: str, error: Exception) -> str:
    """Return the message with the path to the part that cannot travel, and the advice."""
    return _explain(value, what, what, error)


def explain_result(value: object, what: str, error: Exception) -> str:
    """Return the message for a result or an item of a function; see `explain_failure`."""
    return _explain(value, what, what, error, _get_result_advice)


def explain_arguments(value: Any, what: str, error: Exception) -> str:
    """Return the message for a call's arguments (a pair of `args` and `kwargs`), with the position or name of one."""
    args, kwargs = value
    what = f"the arguments of {what if '`' in what else f'`{what}`'}"
    named = [(f"argument {position}", part) for position, part in enumerate(args)]
    named += [(f"argument {name!r}", part) for name, part in kwargs.items()]
    for name, part in named:
        if not pickling.can_travel(part):
            return _explain(part, name, what, error)
    return _explain(value, "a part", what, error)


def _explain(
    value: object, path: str, what: str, error: Exception, advise: Callable[[object], str] = get_advice
) -> str:
    path, culprit = _find_culprit(value, path, set(), 0)
    kind = type(culprit)
    advice = advise(culprit)
    return (
        f"Cannot send {what} to another process: {path} is a {kind.__module__}.{kind.__name__}, which cannot be "
        f"pickled ({texts.safe_text(error)}). Remedy: {advice}."
    )


def _get_optional_advice(value: object, table: Mapping[str, str] = _ADVICE) -> str | None:
    names = (f"{parent.__module__}.{parent.__qualname__}" for parent in type(value).__mro__)
    return next((table[name] for name in names if name in table), None)


def _find_culprit(value: object, path: str, seen: set[int], depth: int) -> tuple[str, object]:
    """Return the path and the value of the deepest part that cannot travel, or of the first part with an advice."""
    # The search stops at an advice, because the user does not know of the lock inside a thread, for example.
    if depth < _SEARCH_DEPTH and id(value) not in seen and _get_optional_advice(value) is None:
        seen.add(id(value))
        for step, part in list_parts(value):
            if id(part) not in seen and not pickling.can_travel(part):
                return _find_culprit(part, path + step, seen, depth + 1)
    return path, value


_SLOTS = (types.GetSetDescriptorType, types.MemberDescriptorType)
"""Types of attributes that Python puts into a class, such as ``__dict__`` and ``__weakref__``; they hold no values."""


def list_parts(value: object) -> list[tuple[str, object]]:
    """Return the parts of a value, each with the step that leads to it."""
    if isinstance(value, types.MethodType):
        return [(" -> its object", value.__self__), (" -> its function", value.__func__)]
    if isinstance(value, types.FunctionType):
        names = value.__code__.co_freevars
        cells = [cell.cell_contents for cell in value.__closure__ or () if cell != types.CellType()]
        parts = [(f" -> closure variable {name!r}", cell) for name, cell in zip(names, cells, strict=False)]
        used = [name for name in value.__code__.co_names if name in value.__globals__]
        parts += [(f" -> global variable {name!r}", value.__globals__[name]) for name in used]
        defaults = value.__defaults__ or ()
        return parts + [(f" -> default value {position}", default) for position, default in enumerate(defaults)]
    if isinstance(value, dict):
        return [(f"[{texts.safe_repr(key)}]", part) for key, part in value.items()]
    if isinstance(value, list | tuple | set | frozenset):
        return [(f"[{position}]", part) for position, part in enumerate(value)]
    if isinstance(value, type):
        own = [(name, part) for name, part in vars(value).items() if not isinstance(part, _SLOTS)]
        return [(f" -> class attribute {name!r}", part) for name, part in own]
    return [(f".{name}", part) for name, part in getattr(value, "__dict__", {}).items()]
