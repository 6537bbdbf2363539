"""Lines of a log in which parts are missing, doubled or something else."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

ODD: list[Any] = [
    *(None, "x", "1e9", True, -1, -0.0, 1e300, 1e400, float("nan"), 2**70, 10**400),
    *([], {}, [[]], [None], ["x"], {"a": {}}, {"!pickle": "x"}, "<img src=x>", "__proto__"),
]


def damage(value: Any, rng: random.Random) -> Any:
    """Return a value in which each part may be another one."""
    if rng.random() < 0.15:
        return rng.choice(ODD)
    if isinstance(value, dict):
        return {name: damage(one, rng) for name, one in value.items() if rng.random() > 0.03}
    if isinstance(value, list):
        return [damage(one, rng) for one in value for _ in range(1 + (rng.random() < 0.05))]
    return value


def write_damaged(lines: Sequence[Mapping[str, object]], rng: random.Random) -> str:
    """Return a log of lines, of which a third is damaged, in any order after the first."""
    chosen = [lines[0], *rng.choices(lines, k=2 * len(lines)), lines[-1]]
    told = chosen
    while told == chosen:
        told = [damage(dict(one), rng) if rng.random() < 0.3 else one for one in chosen]
    return "".join(json.dumps(one, separators=(",", ":")) + "\n" for one in told)
