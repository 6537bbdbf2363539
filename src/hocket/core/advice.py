"""Advice for calls that `hocket.core.api` refuses: texts that name the right call."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, ValuesView
from typing import Any

from hocket import keywords
from hocket._base import texts
from hocket.core import actor, remote_function
from hocket.engine import contract


def suggest_call(method: actor.ActorMethod | actor.UnboundMethod) -> str:
    """Return the advice on how to call a method."""
    if isinstance(method, actor.UnboundMethod):
        return actor.explain_unbound(method)
    return f"The methods of an actor are remote already: write actor.{method._name}.remote(...)."


def suggest(wrong: object) -> str:
    """Return the advice for a wrong argument of `get`."""
    if isinstance(wrong, remote_function.RemoteFunction | actor.ActorMethod):
        return "Call it first: hocket.get(name.remote(...))."
    if isinstance(wrong, actor.UnboundMethod):
        return actor.explain_unbound(wrong)
    if isinstance(wrong, actor.ActorHandle):
        return "Call a method of the actor: hocket.get(actor.method.remote(...))."
    if getattr(wrong, "__name__", "") == "remote":
        return "Call it first: .remote(...), with parentheses."
    if not _holds_references(wrong) and _is_in_task():
        return "In a task, an argument that was passed as a reference is already the value: use the argument itself."
    if isinstance(wrong, Mapping):
        return "Write hocket.get(list(refs.values())) for the values of a dict."
    if isinstance(wrong, Iterable) and not isinstance(wrong, str | bytes):
        return "Write hocket.get(list(refs)) for other containers."
    return "Pass only references that .remote() or put() returned."


def suggest_flat(wrong: object) -> str:
    """Return the advice for a list inside the argument's list; an empty text for any other value."""
    if not isinstance(wrong, list | tuple):
        return ""
    return "Flatten the list: hocket.get([ref for part in refs for ref in part])."


def _holds_references(value: object) -> bool:
    parts = value.values() if isinstance(value, Mapping) else value
    return isinstance(parts, list | tuple | set | frozenset | ValuesView) and any(
        isinstance(part, contract.ObjectRef) for part in parts
    )


def _is_in_task() -> bool:
    engine = contract.current_engine
    return engine is not None and engine.view.get_context().task_id is not None


def explain_surplus(
    name: str, surplus: tuple[object, ...], unknown: Mapping[str, object], known: tuple[str, ...]
) -> str:
    """Return the error message for surplus arguments of `get` or `wait`. Python's own message would name no keyword."""
    if unknown:
        wrong = next(iter(unknown))
        hint = keywords.suggest(wrong, known) or f" It has {' and '.join(map(repr, known))}."
        return f"hocket.{name}() has no keyword {wrong!r}.{hint}"
    if all(isinstance(one, contract.ObjectRef) for one in surplus):
        return f"hocket.{name}() takes several references as one list. Write hocket.{name}([first, second, ...])."
    given = ", ".join(f"{keyword}={texts.safe_repr(one, 80)}" for keyword, one in zip(known, surplus, strict=False))
    return (
        f"hocket.{name}() takes one argument without a keyword, but received {1 + len(surplus)}. Write "
        f"hocket.{name}(refs, {given})."
    )


def hide_surplus(function: Any) -> None:
    """Hide from a function's signature the parameters that exist only to explain mistakes."""
    shown = inspect.signature(function)
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = [parameter for parameter in shown.parameters.values() if parameter.kind not in kinds]
    function.__signature__ = shown.replace(parameters=parameters)
