"""What is said of a keyword that a class does not have: the one that was meant, or where it belongs."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn, TypeVar, final

from hocket import exceptions, texts

_Class = TypeVar("_Class", bound=type)

_MOST_LETTERS: Final = 60
"""How much of a value is repeated in what is to be written. A guess: more is no longer read."""


@final
@dataclass(frozen=True, kw_only=True)
class _Known:
    """What a class can be given."""

    names: Sequence[str]
    """Its keywords, in order."""
    most_positional: int
    """How many of them need not be named."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    nested: Mapping[str, type] = field(default_factory=dict)


_known: Final[dict[type, _Known]] = {}


def explained(
    *, aliases: Mapping[str, str] | None = None, nested: Mapping[str, type] | None = None
) -> Callable[[_Class], _Class]:
    """Return a decorator of classes: an unknown keyword raises an error that names the one that was meant.

    Python's own error names the keyword alone. The class stays the same but for its ``__init__``, which looks at the
    names of what it is given before it does anything.

    Args:
        aliases: By a foreign name: ours, or all that is to be written, with ``{value}`` where the value belongs.
        nested: By keyword: the class of what belongs there, so that its keywords are found where they are missing.

    Example:
        >>> from hocket import constructors
        >>> @constructors.explained(aliases={"colour": "color"})
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

    def decorate(cls: _Class) -> _Class:
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
                # Where none must be named, Python says all of a surplus that can be said.
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
    """Raise for a field of a frozen dataclass, as Python does, and say what to write."""
    kind = cls.__name__
    raise dataclasses.FrozenInstanceError(
        f"{kind} cannot be changed, and its {name!r} was to be. Give that to {kind}(...), or make another one with "
        f"dataclasses.replace(old, {name}=...)."
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
    """Return what is to be written in place of a keyword, empty if nobody knows, and whether it belongs elsewhere."""
    import difflib  # here, because a program without a mistake never needs it

    known = _known[cls]
    if name in known.aliases:
        text = known.aliases[name]
        return (text.replace("{value}", _show(value)), True) if "=" in text else (f"{text}={_show(value)}", False)
    inside = _find_inside(known, name, value)
    if inside:
        return inside, True
    close = difflib.get_close_matches(name, known.names, 1)
    if close:
        return f"{close[0]}={_show(value)}", False
    for outer, kind in known.nested.items():
        text, _ = _find(kind, name, value) if kind in _known else ("", False)
        if text:
            return f"{outer}={kind.__name__}({text})", True
    return "", False


def _find_inside(known: _Known, name: str, value: object) -> str:
    """Return what is to be written if a keyword is one of what is given to the class."""
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
