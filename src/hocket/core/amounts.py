"""Amounts of resources, as users write them: which are possible. Names and rules are Ray's."""

from __future__ import annotations

import math

from hocket.kernel import resources

WHOLE = frozenset({"GPU", "TPU", "NPU", "HPU", "RBLN", "neuron_cores"})
"""What comes in pieces that are told apart: a part of one can be shared, but one and a half cannot be handed out."""


def explain_amount(what: str, resource: str, amount: float) -> str | None:
    """Return what is wrong with an amount, or None.

    Args:
        what: The keyword or the place where it was given, for the message.
        resource: The resource's name.
        amount: How much of it.
    """
    if not math.isfinite(amount):
        return f"{what} must be a finite number, but received {amount!r}. Leave it out for the default."
    if amount < 0:
        return f"{what} must be 0 or more, but received {amount!r}. Leave it out for the default."
    if amount and int(amount * resources.UNIT) == 0:
        return (
            f"{what} must be 0, or at least {1 / resources.UNIT:g}, which is the smallest part; but received "
            f"{amount!r}."
        )
    if resource in WHOLE and amount > 1 and amount != int(amount):
        return (
            f"{what} must be a whole number above 1, or a part of 1, but received {amount!r}: work that shares a "
            f"{resource} cannot have another one beside it. Write {int(amount)} or {int(amount) + 1}, or for example "
            "0.5."
        )
    return None
