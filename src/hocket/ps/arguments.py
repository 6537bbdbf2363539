"""What `pull` and `push` of a strategy are given."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hocket import texts
from hocket.ps import embedding, variable


def check_variables(given: object) -> list[variable.BaseVariable]:
    """Return the variables to pull, as a list."""
    if isinstance(given, variable.BaseVariable):
        raise TypeError(
            f"pull takes a list of variables, but received `{given.name}` alone. Write pull([{given.name}])."
        )
    if not isinstance(given, Iterable):
        raise TypeError(
            f"pull takes a list of variables, but received {texts.safe_repr(given)}. Write pull([variable])."
        )
    found: list[variable.BaseVariable] = []
    for one in given:
        if isinstance(one, embedding.Embedding):
            raise TypeError(f"pull takes variables, but received the table `{one.name}`. Write {one.name}.pull(ids).")
        if not isinstance(one, variable.BaseVariable):
            raise TypeError(
                f"pull takes variables, but received {texts.safe_repr(one)}. Pass what ps.Variable(...) made."
            )
        found.append(one)
    return found


def check_pairs(given: object) -> list[tuple[Any, Any]]:
    """Return the pairs of a gradient and its variable to push, as a list."""
    pairs: list[Any] = list(given) if isinstance(given, Iterable) else [given]
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise TypeError(
                "push takes a list of pairs of a gradient and its variable, but received "
                f"{texts.safe_repr(pair)} for a pair. Write push([(gradient, variable)])."
            )
    return pairs
