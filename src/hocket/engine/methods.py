"""How an engine finds what a call on an actor is to run."""

from __future__ import annotations

import inspect
from typing import Any


def get_method(actor: Any, name: str) -> Any:
    """Return what the actor's class calls so, bound to the actor.

    As in Ray, whose handles know the class and not the object: an attribute of the actor that has the same name does not hide the method.
    """
    try:
        if name not in actor.__dict__:
            return getattr(actor, name)
    except AttributeError:  # it has slots
        return getattr(actor, name)
    found = inspect.getattr_static(type(actor), name)
    return found.__get__(actor, type(actor)) if hasattr(found, "__get__") else found
