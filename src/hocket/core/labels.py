"""Checks of nodes' labels, and of conditions on them. The rules are Ray's, which takes them from Kubernetes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_WORD = r"[a-zA-Z0-9](?:[a-zA-Z0-9_.-]{0,61}[a-zA-Z0-9])?"
_PART = r"[a-zA-Z0-9](?:[a-zA-Z0-9_-]{0,61}[a-zA-Z0-9])?"
_PREFIX = rf"{_PART}(?:\.{_PART})*"
_SELECTOR = rf"!?(?:{_WORD}|in\(\s*{_WORD}(?:\s*,\s*{_WORD})*\s*\))"

_RULE = "1 to 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends"


def explain_key(key: object) -> str | None:
    """Return the error message for the name of a label; None if it is right, as ``disk`` or ``example.com/disk``."""
    if not isinstance(key, str):
        return f"The name of a label must be text, but received {key!r}."
    prefix, slash, name = key.rpartition("/")
    if slash and (len(prefix) > 253 or not re.fullmatch(_PREFIX, prefix)):
        return (
            f"The label {key!r} has the prefix {prefix!r}, which must be a name such as 'example.com' of at most 253 "
            "characters. Leave the prefix and the '/' out, or correct it."
        )
    return (
        None
        if re.fullmatch(_WORD, name)
        else f"The label {key!r} must have a name of {_RULE}. Write for example 'disk'."
    )


def explain_value(key: str, value: object) -> str | None:
    """Return the error message for the value of a label, which may be empty; None if it is right."""
    if not isinstance(value, str):
        return f"The value of label {key!r} must be text, but received {value!r}. Write {str(value)!r}."
    if value and not re.fullmatch(_WORD, value):
        return f"The value of label {key!r} must have {_RULE}, but received {value!r}. Write for example 'ssd'."
    return None


def explain_selector(name: str, selector: Mapping[object, object]) -> str | None:
    """Return the error message for a selector; None if it is right.

    Args:
        name: The name of the keyword, for the message.
        selector: By label, a condition: ``ssd``, ``!ssd``, ``in(ssd, nvme)`` or ``!in(ssd, nvme)``.
    """
    for label, wanted in selector.items():
        if not isinstance(label, str) or not isinstance(wanted, str):
            return f"{name!r} must map text to text, such as {{'disk': 'ssd'}}, but received {label!r}: {wanted!r}."
        problem = explain_key(label)
        if problem is not None:
            return f"{name!r}: {problem}"
        if wanted.lstrip("!").startswith("in(") and not wanted.endswith(")"):
            return f"{name!r}: {wanted!r} lacks the closing bracket. Write 'in(a, b)' or '!in(a, b)'."
        if wanted and not re.fullmatch(_SELECTOR, wanted):
            return (
                f"{name!r}: {wanted!r} is not a condition on label {label!r}. Write 'a', '!a', 'in(a, b)' or '!in(a, "
                f"b)', where each value has {_RULE}."
            )
    return None


def check_labels(labels: Mapping[Any, object]) -> None:
    """Raise ValueError if a name or a value is wrong for a node's label."""
    for key, value in labels.items():
        problem = explain_key(key) or explain_value(key, value)
        if problem is not None:
            raise ValueError(problem)
