"""Paths into a space, and the values there: domains and grids between constants."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from hocket.tune.search import domains, samplers, space

Path: TypeAlias = tuple[Any, ...]
"""The keys and list indices that lead to a value."""

_MAKERS = (
    space.uniform,
    space.quniform,
    space.loguniform,
    space.qloguniform,
    space.randn,
    space.qrandn,
    space.randint,
    space.qrandint,
    space.lograndint,
    space.qlograndint,
    space.choice,
    space.sample_from,
    space.grid_search,
)


def find_domain(value: object, path: Path = ()) -> domains.Domain | None:
    """Return the domain that a value of a space is or stands for; None if it is a constant."""
    if isinstance(value, domains.Domain):
        return value
    if isinstance(value, dict) and "grid_search" in value:
        if len(value) > 1:
            raise ValueError(
                f"A grid is a dict with the one key 'grid_search', but {describe_path(path)} has the keys "
                f"{list(value)}. Write each of them as a key of its own in the space."
            )
        return domains.Categorical(samplers.check_values("grid_search", value["grid_search"]), samplers.Grid())
    _check_constant(value, path)
    return None


def find_variables(value: object, path: Path = ()) -> Iterator[tuple[Path, domains.Domain]]:
    """Yield the domains and grids of a space, in their order, with their paths."""
    domain = find_domain(value, path)
    if domain is not None:
        yield path, domain
    else:
        for key, item in get_items(value):
            yield from find_variables(item, (*path, key))


def is_open(value: object) -> bool:
    """Return whether a value is or holds a domain or grid."""
    return next(find_variables(value), None) is not None


def get_items(value: object) -> Iterator[tuple[object, object]]:
    """Return the keys or indices of a container that a space may nest in, with their values."""
    if isinstance(value, dict):
        return iter(value.items())
    if isinstance(value, list | tuple):
        return enumerate(value)
    return iter(())


def replace(value: object, change: Callable[[Path, Any], tuple[bool, Any]], path: Path = ()) -> Any:
    """Return a copy of nested dicts, lists and tuples with some values replaced. Other values are not copied.

    Args:
        value: The outermost container.
        change: A function from a path and its value to whether to replace it, and the replacement.
        path: The path of `value`.
    """
    changed, other = change(path, value)
    if changed:
        return other
    if isinstance(value, dict):
        found = {key: replace(item, change, (*path, key)) for key, item in value.items()}
        kept = type(value) is not dict and all(found[key] is item for key, item in value.items())
        return value if kept else found
    if isinstance(value, list | tuple):
        items = [replace(item, change, (*path, place)) for place, item in enumerate(value)]
        if type(value) is list:
            return items
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        if isinstance(value, tuple):
            return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
        return items
    return value


def assign(value: object, replacements: Mapping[Path, Any]) -> Any:
    """Return a copy of a space with the values at some paths replaced."""
    return replace(value, lambda path, _: (True, replacements[path]) if path in replacements else (False, None))


def get_value(value: object, path: Path) -> object:
    """Return the value at a path."""
    for key in path:
        if not isinstance(value, Mapping | list | tuple):
            raise KeyError(key)
        value = value[key]
    return value


def describe_path(path: Path) -> str:
    """Return a path in words."""
    return repr("/".join(map(str, path))) if path else "the space"


def sort_key(path: Path) -> list[tuple[bool, int, str]]:
    """Return a sort key for paths: list indices as numbers, keys as text."""
    return [(False, key, "") if isinstance(key, int) else (True, 0, str(key)) for key in path]


def _check_constant(value: Any, path: Path) -> None:
    module = type(value).__module__
    if module == "ray.tune.search.sample":
        raise TypeError(
            f"{describe_path(path)} is one of Ray's domains, {value!r}, which Hocket does not know. Import the "
            "function that made it from hocket.tune instead of ray.tune."
        )
    if module.startswith("optuna.distributions"):
        raise TypeError(
            f"{describe_path(path)} is one of Optuna's distributions, {value!r}, which only OptunaSearch draws. Write "
            "OptunaSearch(space=...) with a space of such distributions only, or one of hocket.tune's domains."
        )
    if any(value is maker for maker in _MAKERS) or (isinstance(value, type) and issubclass(value, domains.Domain)):
        raise TypeError(
            f"{describe_path(path)} is {value.__name__} itself, which draws nothing. Call it: {value.__name__}(...)."
        )
    if isinstance(value, dict) and len(value) == 1 and isinstance(value.get("eval"), str):
        raise ValueError(
            f"{describe_path(path)} is {value!r}, which Ray evaluates and Hocket does not. Write "
            f"sample_from(lambda spec: {value['eval']})."
        )
