"""JSON for pages that browsers read: they know no NaN and no infinities."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping


def encode(found: object, indent: int | None = None) -> str:
    """Return JSON in ASCII; a float that is not finite is a text, and so is what JSON does not have.

    Args:
        found: What to encode.
        indent: By how many columns; None is one line without spaces.

    Example:
        >>> from hocket.observe import answers
        >>> answers.encode({"loss": float("nan"), "step": 1})
        '{"loss":"nan","step":1}'
    """
    separators = (",", ":") if indent is None else None
    try:
        return json.dumps(found, default=str, allow_nan=False, indent=indent, separators=separators)
    except ValueError:  # rare, and so looked for only now
        return json.dumps(_make_finite(found), default=str, indent=indent, separators=separators)


def _make_finite(found: object) -> object:
    if isinstance(found, float) and not math.isfinite(found):
        return str(found)
    if isinstance(found, Mapping):
        return {name: _make_finite(value) for name, value in found.items()}
    if isinstance(found, list | tuple):
        return [_make_finite(one) for one in found]
    return found
