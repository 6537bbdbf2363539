"""Checks of the amounts of resources that users write. Names and rules are Ray's."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable

from hocket import keywords
from hocket.kernel import resources

WHOLE = frozenset({"GPU", "TPU", "NPU", "HPU", "RBLN", "neuron_cores"})
"""Resources with distinct units: tasks can share a part of a unit, but no task can get one and a half."""


def explain_amount(what: str, resource: str, amount: float) -> str | None:
    """Return the error message for an amount; None if the amount is possible.

    Args:
        what: The keyword or the place of the amount, for the message.
        resource: The resource's name.
        amount: The amount.
    """
    if not math.isfinite(amount):
        return f"{what} must be a finite number, but received {amount!r}. Leave it out for the default."
    if amount < 0:
        return f"{what} must be 0 or more, but received {amount!r}. Leave it out for the default."
    if amount and int(amount * resources.UNIT) == 0:
        return (
            f"{what} must be 0, or at least {1 / resources.UNIT:g}, the smallest part, but received {amount!r}. Write "
            f"{1 / resources.UNIT:g} or more."
        )
    if resource in WHOLE and amount > 1 and amount != int(amount):
        return (
            f"{what} must be a whole number, or a fraction below 1, but received {amount!r}: a task or an "
            f"actor gets whole units of {resource}, or shares a single one. Write {int(amount)} or {int(amount) + 1}, "
            "or for example 0.5."
        )
    return None


_MEANT = {"cpu": "CPU", "cpus": "CPU", "num_cpus": "CPU", "gpu": "GPU", "gpus": "GPU", "num_gpus": "GPU"}
"""The names of resources, by other spellings that users write: ``cpu``, ``num_gpus``."""


def ask_for_names(given: Iterable[str], there: Collection[str], spell: Callable[[str], str] = str) -> str:
    """Return a "Did you mean" question for each resource that the session does not have, each after a space.

    Args:
        given: The names of the requested resources.
        there: The names of the session's resources.
        spell: A function that returns how users write ``CPU`` and ``GPU`` in the caller's place.

    Example:
        >>> from hocket.core import amounts
        >>> amounts.ask_for_names(["cpu", "camera"], ["CPU", "memory"])
        " Did you mean 'CPU' by 'cpu'?"
    """
    found = ""
    for name in given:
        meant = _MEANT.get(name.lower())
        if name in there or name == meant:
            continue
        question = f" Did you mean {spell(meant)!r}?" if meant else keywords.suggest(name, there)
        found += f"{question.removesuffix('?')} by {name!r}?" if question else ""
    return found
