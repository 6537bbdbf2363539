"""JSON for pages that browsers read: they know no NaN and no infinities."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping


def encode(found: object) -> str:
    """Return JSON in ASCII; a float that is not finite is a text, and so is what JSON does not have.

    Example:
        >>> from hocket.observe import answers
        >>> answers.encode({"loss": float("nan"), "step": 1})
        '{"loss":"nan","step":1}'
    """
    try:
        return json.dumps(found, default=str, allow_nan=False, separators=(",", ":"))
    except ValueError:  # rare, and so looked for only now
        return json.dumps(_make_finite(found), default=str, separators=(",", ":"))


def _make_finite(found: object) -> object:
    if isinstance(found, float) and not math.isfinite(found):
        return str(found)
    if isinstance(found, Mapping):
        return {name: _make_finite(value) for name, value in found.items()}
    if isinstance(found, list | tuple):
        return [_make_finite(one) for one in found]
    return found
