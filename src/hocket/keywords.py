"""Keywords that a function does not have: they are refused at the call, with the one that was meant.

Python refuses them, too. But it calls a method by the class in which it is written, which may be one of ours that no
user has heard of, and says what was meant from Python 3.13 on.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any, Final, NoReturn, ParamSpec, TypeVar

from hocket import exceptions

P = ParamSpec("P")
R = TypeVar("R")
K = TypeVar("K", bound=type)

_OTHER_WORDS: Final = {
    "full": "full_outer",
    "how": "join_type",
    "left": "left_outer",
    "local_dir": "storage_path",
    "max_concurrent_trials": "max_concurrent",
    "max_iter": "max_t",
    "n_samples": "num_samples",
    "outer": "full_outer",
    "parallelism": "override_num_blocks",
    "random_state": "seed",
    "randomize": "shuffle",
    "right": "right_outer",
    "train_size": "test_size",
}
"""What other libraries, and older versions of Ray, call a keyword, or what is given for one."""


def suggest(name: str, known: Iterable[str], form: str = "{!r}") -> str:
    """Return the question whether another name was meant, after a space; nothing if none is like it.

    Args:
        name: What was written.
        known: The names that there are.
        form: How the other name is written.

    Example:
        >>> from hocket import keywords
        >>> keywords.suggest("sed", ["seed", "num_blocks"])
        " Did you mean 'seed'?"
    """
    import difflib  # here, because a program without a mistake never needs it

    names = list(known)
    other = _OTHER_WORDS.get(name)
    longer = [one for one in names if one.startswith(f"{name}_")]
    close = [other] if other in names else difflib.get_close_matches(name, names, 1) or longer
    return f" Did you mean {form.format(close[0])}?" if close else ""


def refuse(caller: str, name: str, known: Iterable[str], also: str = "") -> NoReturn:
    """Raise for a keyword that a function does not have.

    Args:
        caller: The function, as it is called: ``sort()``.
        name: The keyword.
        known: Those that it has.
        also: What it takes besides, for who finds nothing among these; it stands behind their list.
    """
    names = [one for one in known if not one.startswith("_")]
    takes = f" It takes {', '.join(names) or 'none'}{also}."
    raise TypeError(f"{caller} has no keyword {name!r}.{suggest(name, names) or takes}")


def check(caller: str, given: Iterable[str], known: Iterable[str], also: str = "", others: Iterable[str] = ()) -> None:
    """Raise if a keyword is given that a function does not have; see `refuse`.

    Args:
        caller: The function, as it is called.
        given: The keywords that were given.
        known: Those that it has.
        also: What stands behind the list of these.
        others: Those that it has, too, but that are not listed.
    """
    allowed = [*known, *others]
    for name in given:
        if name not in allowed:
            names = [*known] if not suggest(name, known) and not suggest(name, others) else allowed
            refuse(caller, name, names, also)


def list_names(function: Callable[..., object]) -> list[str]:
    """Return the names of a function's own arguments, without those behind two stars."""
    code = inspect.unwrap(function).__code__
    return [
        name for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount] if name not in ("self", "cls")
    ]


def guard(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function that refuses keywords which it does not have. From errors of this package that it raises,
    frames of this package are taken; see `exceptions.hide_frames`."""
    shown = list_names(function)
    names = frozenset(shown)
    takes_any = bool(function.__code__.co_flags & inspect.CO_VARKEYWORDS)
    tell, hide = refuse, exceptions.hide_frames
    is_init = function.__name__ == "__init__"

    def call(*args: Any, **kwargs: Any) -> Any:
        if not takes_any and not names.issuperset(kwargs):
            caller = f"{type(args[0]).__name__}()" if is_init else f"{function.__name__}()"
            tell(caller, next(name for name in kwargs if name not in names), shown)
        try:
            return function(*args, **kwargs)
        except Exception as error:
            hide(error)
            raise

    # With the globals of the module in which it is written, where doctest looks for it.
    made = types.FunctionType(call.__code__, function.__globals__, call.__name__, None, call.__closure__)
    return functools.update_wrapper(made, function)


def guard_methods(kind: K) -> K:
    """Have the public methods of a class refuse keywords which they do not have, also those that it inherits."""
    for name in dir(kind):
        found = inspect.getattr_static(kind, name)
        if name.startswith("_") or not isinstance(found, types.FunctionType) or hasattr(found, "__wrapped__"):
            continue
        if found.__module__.partition(".")[0] != __name__.partition(".")[0]:
            continue  # it belongs to a base class of somebody else's
        guarded: Any = guard(found)
        guarded.__qualname__ = f"{kind.__qualname__}.{name}"
        guarded.__module__ = kind.__module__
        setattr(kind, name, guarded)
    return kind


def guard_functions(module: str) -> None:
    """Have the public functions that a module defines refuse keywords which they do not have."""
    names = vars(sys.modules[module])
    for name, found in list(names.items()):
        if isinstance(found, types.FunctionType) and found.__module__ == module and not name.startswith("_"):
            names[name] = guard(found)


def guard_init(kind: K) -> K:
    """Have a class refuse keywords which its constructor does not have."""
    kind.__init__ = guard(kind.__init__)  # type: ignore[misc]  # it is the class's own
    return kind
