"""Changes of a configuration: a value is sampled again, or moved a little.

A mutation's source is a list or tuple of values, a function without arguments, a domain (an object with a method
``sample``, as in `hocket.tune.search.space`), or a dict of these.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, cast, runtime_checkable

Config: TypeAlias = dict[str, Any]


@runtime_checkable
class Domain(Protocol):
    """A source of values."""

    def sample(self, *, random_state: int | None = None) -> Any:
        """Return a value; the same number gives the same value."""


def check(mutations: object, name: str = "hyperparam_mutations") -> None:
    """Check that each mutation has a source of values.

    Args:
        mutations: A dict.
        name: The argument's name in errors.
    """
    if not isinstance(mutations, Mapping):
        raise TypeError(f"{name} must be a dict, but received {mutations!r}. Write {{'lr': tune.loguniform(1e-4, 1)}}.")
    for key, source in mutations.items():
        where = f"{name}[{key!r}]"
        if isinstance(source, Mapping):
            check(source, where)
        elif isinstance(source, list | tuple):
            if not source:
                raise ValueError(f"{where} must not be empty, but received {source!r}. Leave the key out.")
        elif isinstance(source, type) or not (isinstance(source, Domain) or callable(source)):
            raise TypeError(
                f"{where} must be a list, a domain such as tune.uniform(0, 1), a function without arguments, or a dict "
                f"of these, but received {source!r}. Write [{source!r}] for one value."
            )


def complete(config: Mapping[str, Any], mutations: Mapping[str, Any], drawn: random.Random) -> Config:
    """Return a configuration whose missing keys are filled with values of the mutations."""
    completed = dict(config)
    for key, source in mutations.items():
        if isinstance(source, Mapping):
            inner = completed.get(key, {})
            if isinstance(inner, Mapping):
                completed[key] = complete(inner, source, drawn)
        elif key not in completed:
            completed[key] = draw(source, drawn)
    return completed


def draw(source: object, drawn: random.Random) -> object:
    """Return a value from a list, a domain or a function."""
    if isinstance(source, list | tuple):
        return drawn.choice(source)
    if isinstance(source, Domain):
        return source.sample(random_state=drawn.getrandbits(32))
    return cast(Callable[[], Any], source)()


def explore(
    config: Mapping[str, Any],
    mutations: Mapping[str, object],
    drawn: random.Random,
    resample_probability: float,
    factors: Sequence[float],
) -> Config:
    """Return a changed copy of a configuration.

    Args:
        config: A configuration with all keys of `mutations`.
        mutations: The keys that change, with the sources of new values.
        drawn: The random generator.
        resample_probability: The probability that a value is sampled again.
        factors: Otherwise a number is multiplied by one of these. A value of a list moves to a neighbour.
    """
    changed = copy.deepcopy(dict(config))
    for key, source in mutations.items():
        old = config[key]
        if isinstance(source, Mapping):
            changed[key] = explore(old, source, drawn, resample_probability, factors)
            continue
        values = source if isinstance(source, list | tuple) else getattr(source, "categories", None)
        resamples = drawn.random() < resample_probability
        if values is not None:
            changed[key] = _shift(old, list(values), drawn, resamples)
        elif resamples or isinstance(old, bool) or not isinstance(old, int | float):
            changed[key] = old if isinstance(old, bool) and not resamples else draw(source, drawn)
        else:
            changed[key] = old * drawn.choice(factors)
        if isinstance(old, int) and values is None:  # whole numbers stay whole
            changed[key] = bool(changed[key]) if isinstance(old, bool) else round(changed[key])
    return changed


def _shift(old: object, values: list[object], drawn: random.Random, resamples: bool) -> object:
    if resamples or old not in values:
        return drawn.choice(values)
    place = values.index(old) + drawn.choice((-1, 1))
    return values[min(max(place, 0), len(values) - 1)]


def keep(config: Mapping[str, Any], mutations: Mapping[str, object]) -> Config:
    """Return the part of a configuration that mutations change."""
    return {
        key: keep(config[key], source) if isinstance(source, Mapping) else config[key]
        for key, source in mutations.items()
        if key in config
    }
