"""Errors for unknown keywords of functions and classes: each names the keyword that was meant, or its right place.

Python raises errors for unknown keywords, too. But its message names the class that defines a method, which may be an
internal one, and suggests the right keyword only from Python 3.13 on.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NoReturn, ParamSpec, TypeVar, final

from hocket import exceptions
from hocket._base import texts

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
"""By the name of a keyword or of a value in other libraries and older versions of Ray: our name."""


def find_close(name: str, known: Iterable[str], likeness: float = 0.6) -> str:
    """Return the name that was probably meant; empty if none is similar. All "Did you mean" messages use this.

    Args:
        name: The name that the user wrote.
        known: The names that exist.
        likeness: The least similarity, from 0 to 1, as in `difflib.get_close_matches`.
    """
    import difflib  # here, because a program without a mistake never needs it

    return next(iter(difflib.get_close_matches(name, known, 1, likeness)), "")


def suggest(name: str, known: Iterable[str], form: str = "{!r}") -> str:
    """Return a space and the question whether another name was meant; an empty text if none is similar.

    Args:
        name: The name that the user wrote.
        known: The names that exist.
        form: The format of the other name.

    Example:
        >>> from hocket import keywords
        >>> keywords.suggest("sed", ["seed", "num_blocks"])
        " Did you mean 'seed'?"
    """
    names = list(known)
    other = _OTHER_WORDS.get(name)
    longer = next((one for one in names if one.startswith(f"{name}_")), "")
    close = other if other in names else find_close(name, names) or longer
    return f" Did you mean {form.format(close)}?" if close else ""


def refuse(caller: str, name: str, known: Iterable[str], also: str = "") -> NoReturn:
    """Raise for a keyword that a function does not have.

    Args:
        caller: The function, as users call it: ``sort()``.
        name: The keyword.
        known: The keywords that the function has.
        also: Text behind the list of keywords, about other arguments that the function takes.
    """
    names = [one for one in known if not one.startswith("_")]
    takes = f" It takes {', '.join(names) or 'none'}{also}."
    raise TypeError(f"{caller} has no keyword {name!r}.{suggest(name, names) or takes}")


def check(caller: str, given: Iterable[str], known: Iterable[str], also: str = "", others: Iterable[str] = ()) -> None:
    """Raise if a function does not have one of the given keywords; see `refuse`.

    Args:
        caller: The function, as users call it.
        given: The keywords of the call.
        known: The keywords that the function has.
        also: Text behind the list of keywords.
        others: Further keywords that the function has, which the message does not list.
    """
    allowed = [*known, *others]
    for name in given:
        if name not in allowed:
            names = [*known] if not suggest(name, known) and not suggest(name, others) else allowed
            refuse(caller, name, names, also)


def list_names(function: Callable[..., object]) -> list[str]:
    """Return the names of a function's own arguments, without ``*args``, ``**kwargs``, ``self`` and ``cls``."""
    code = inspect.unwrap(function).__code__
    return [
        name for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount] if name not in ("self", "cls")
    ]


def guard(function: Callable[P, R], called: str = "") -> Callable[P, R]:
    """Return a function that refuses unknown keywords, and hides this package's frames in its errors.

    See `exceptions.hide_frames`.

    Args:
        function: The function.
        called: The name by which users call the function. Default: its own.
    """
    shown = list_names(function)
    names = frozenset(shown)
    takes_any = bool(function.__code__.co_flags & inspect.CO_VARKEYWORDS)
    tell, hide = refuse, exceptions.hide_frames
    is_init = function.__name__ == "__init__"

    def call(*args: Any, **kwargs: Any) -> Any:
        if not takes_any and not names.issuperset(kwargs):
            caller = f"{type(args[0]).__name__}()" if is_init else f"{called or function.__name__}()"
            tell(caller, next(name for name in kwargs if name not in names), shown)
        try:
            return function(*args, **kwargs)
        except Exception as error:
            hide(error)
            raise

    # Doctest looks for a function by its globals: they have to be those of the function's own module.
    made = types.FunctionType(call.__code__, function.__globals__, call.__name__, None, call.__closure__)
    return functools.update_wrapper(made, function)


def guard_methods(kind: K) -> K:
    """Have the public methods of a class refuse unknown keywords, inherited methods included."""
    for name in dir(kind):
        found = inspect.getattr_static(kind, name)
        if name.startswith("_") or not isinstance(found, types.FunctionType) or hasattr(found, "__wrapped__"):
            continue
        if found.__module__.partition(".")[0] != __name__.partition(".")[0]:
            continue  # the method belongs to a base class of another package
        guarded: Any = guard(found, name)
        guarded.__name__ = name
        guarded.__qualname__ = f"{kind.__qualname__}.{name}"
        guarded.__module__ = kind.__module__
        setattr(kind, name, guarded)
    return kind


def guard_functions(module: str) -> None:
    """Have the public functions that a module defines refuse unknown keywords."""
    names = vars(sys.modules[module])
    for name, found in list(names.items()):
        if isinstance(found, types.FunctionType) and found.__module__ == module and not name.startswith("_"):
            names[name] = guard(found)


def guard_init(kind: K) -> K:
    """Have the constructor of a class refuse unknown keywords."""
    kind.__init__ = guard(kind.__init__)  # type: ignore[misc]  # it is the class's own
    return kind


# --- keywords of classes ----------------------------------------------------------------------------------------------

_MOST_LETTERS: Final = 60
"""How many letters of a value a suggestion repeats. A guess: users read no more."""


@final
class _Known:
    """The arguments that a class takes. No dataclass: it would cost `import hocket` a millisecond.

    Args:
        names: The keywords of the class, in order.
        most_positional: How many of the arguments may be positional.
        aliases: See `explained`.
        nested: See `explained`.
    """

    __slots__ = ("aliases", "most_positional", "names", "nested")

    def __init__(
        self, names: Sequence[str], most_positional: int, aliases: Mapping[str, str], nested: Mapping[str, type]
    ) -> None:
        self.names, self.most_positional, self.aliases, self.nested = names, most_positional, aliases, nested


_known: Final[dict[type, _Known]] = {}


def explained(
    *, aliases: Mapping[str, str] | None = None, nested: Mapping[str, type] | None = None
) -> Callable[[K], K]:
    """Return a decorator of classes: an unknown keyword raises an error that names the keyword that was meant.

    Python's own error names only the unknown keyword. The decorator changes only the class's ``__init__``, which now
    checks the names of its arguments first, and the error for changes of a frozen dataclass.

    Args:
        aliases: By a foreign name: our keyword, or the whole text to write, with ``{value}`` in place of the value.
        nested: By keyword: the class of its value, in which the error looks for the unknown keyword, too.

    Example:
        >>> from hocket import keywords
        >>> @keywords.explained(aliases={"colour": "color"})
        ... class Pen:
        ...     def __init__(self, *, color="black", width=1):
        ...         pass
        >>> Pen(colour="red")
        Traceback (most recent call last):
        TypeError: Pen has no argument colour. Did you mean color='red'?
        >>> Pen("red")
        Traceback (most recent call last):
        TypeError: Pen takes no value without a name, but received 'red'. Name it, as in Pen(color=...).
    """

    def decorate(cls: K) -> K:
        method: Callable[..., None] = vars(cls)["__init__"]
        kinds = inspect.Parameter
        parameters = list(inspect.signature(method).parameters.values())[1:]
        known = _Known(
            names=[one.name for one in parameters if one.kind is not kinds.POSITIONAL_ONLY],
            most_positional=sum(one.kind is not kinds.KEYWORD_ONLY for one in parameters),
            aliases=aliases or {},
            nested=nested or {},
        )
        _known[cls] = known

        @functools.wraps(method)
        def checked(self: object, *args: object, **given: object) -> None:
            try:
                # If every argument may be positional, Python's own error about a surplus value says enough.
                if known.most_positional < min(len(args), len(known.names)) or not given.keys() <= {*known.names}:
                    _refuse(cls, known, args, given)
                method(self, *args, **given)
            except Exception as error:
                exceptions.hide_frames(error)
                raise

        type.__setattr__(cls, "__init__", checked)
        settings = vars(cls).get("__dataclass_params__")
        if settings is not None and settings.frozen:
            usual: Any = cls.__setattr__

            def refuse(self: object, name: str, value: object) -> None:
                try:
                    usual(self, name, value)
                except dataclasses.FrozenInstanceError:
                    _refuse_change(cls, name)

            type.__setattr__(cls, "__setattr__", refuse)
        return cls

    return decorate


def _refuse_change(cls: type, name: str) -> NoReturn:
    """Raise for a change of a frozen dataclass, as Python does, and say what to write instead."""
    kind = cls.__name__
    raise dataclasses.FrozenInstanceError(
        f"{kind} cannot be changed: {name!r} can be set only when it is made. Pass it to {kind}(...), or make a "
        f"changed copy with dataclasses.replace(old, {name}=...)."
    ) from None


def _refuse(cls: type, known: _Known, args: tuple[object, ...], given: Mapping[str, object]) -> NoReturn:
    unknown = {name: value for name, value in given.items() if name not in known.names}
    if not unknown:
        surplus = ", ".join(_show(value) for value in args[known.most_positional :])
        value = args[known.most_positional]
        meant = (outer for outer, kind in known.nested.items() if isinstance(value, kind))
        name = next(meant, known.names[known.most_positional])
        most = {0: "no value", 1: "one value"}.get(known.most_positional, f"{known.most_positional} values")
        also = "also " if known.most_positional else ""
        raise TypeError(
            f"{cls.__name__} takes {most} without a name, but {also}received {surplus}. Name it, as in "
            f"{cls.__name__}({'..., ' if known.most_positional else ''}{name}=...)."
        )
    found = [_find(cls, name, value) for name, value in unknown.items()]
    renamed = [text for text, is_elsewhere in found if text and not is_elsewhere]
    elsewhere = [text for text, is_elsewhere in found if text and is_elsewhere]
    hints = [f" Did you mean {', '.join(renamed)}?"] * bool(renamed) + [f" Write {text}." for text in elsewhere]
    if len(renamed) + len(elsewhere) < len(unknown):
        hints.append(f" It has {', '.join(known.names)}.")
    raise TypeError(f"{cls.__name__} has no argument {', '.join(unknown)}.{''.join(hints)}")


def _find(cls: type, name: str, value: object) -> tuple[str, bool]:
    """Return the text to write in place of a keyword, empty if unknown, and whether it belongs into another call."""
    known = _known[cls]
    if name in known.aliases:
        text = known.aliases[name]
        return (text.replace("{value}", _show(value)), True) if "=" in text else (f"{text}={_show(value)}", False)
    inside = _find_inside(known, name, value)
    if inside:
        return inside, True
    close = find_close(name, known.names)
    if close:
        return f"{close}={_show(value)}", False
    for outer, kind in known.nested.items():
        text, _ = _find(kind, name, value) if kind in _known else ("", False)
        if text:
            return f"{outer}={kind.__name__}({text})", True
    return "", False


def _find_inside(known: _Known, name: str, value: object) -> str:
    """Return the text to write if a nested class has the keyword; empty if none has it."""
    for outer, kind in known.nested.items():
        inner = _known.get(kind)
        if inner is None:
            continue
        text = f"{name}={_show(value)}" if name in inner.names else _find_inside(inner, name, value)
        if text:
            return f"{outer}={kind.__name__}({text})"
    return ""


def _show(value: object) -> str:
    named: Any = getattr(value, "__name__", None) if callable(value) else None
    return named if isinstance(named, str) else texts.cut(texts.safe_repr(value), _MOST_LETTERS)
