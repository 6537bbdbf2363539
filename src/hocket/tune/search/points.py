"""Configurations that the user knows before a search, and the parts of a space that they fix."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hocket.tune.search import domains, paths

_log = logging.getLogger(__name__)


def check(points: Sequence[Mapping[str, object]] | None) -> list[Mapping[str, Any]]:
    """Check ``points_to_evaluate``, and return the points as a list."""
    if points is None:
        return []
    if isinstance(points, Mapping | str) or not isinstance(points, Iterable):
        raise TypeError(f"points_to_evaluate must be a list of dicts, but received {points!r}. Write [{points!r}].")
    for point in points:
        if not isinstance(point, Mapping):
            raise TypeError(f'points_to_evaluate must be a list of dicts, but one is {point!r}. Write [{{"lr": 0.1}}].')
    return list(points)


def fill(space: Any, point: Any, path: paths.Path = ()) -> Any:
    """Return a space with the values of a point in their places. Warn of a value that the space cannot have."""
    domain = paths.find_domain(space, path)
    if domain is None and isinstance(space, dict) and isinstance(point, Mapping):
        unknown = [key for key in point if key not in space]
        if unknown:
            raise ValueError(
                f"A point of points_to_evaluate has {paths.describe_path((*path, unknown[0]))}, but the space has the "
                f"keys {list(space)} there. Add it to the space, or leave it out of the point."
            )
        return {key: fill(item, point[key], (*path, key)) if key in point else item for key, item in space.items()}
    both = isinstance(space, list | tuple) and isinstance(point, list | tuple)
    if domain is None and both and len(space) == len(point):
        filled = [fill(item, point[place], (*path, place)) for place, item in enumerate(space)]
        return filled if isinstance(space, list) else tuple(filled)
    _warn(domain, space, point, path)
    return point


def _warn(domain: domains.Domain | None, space: object, value: object, path: paths.Path) -> None:
    if domain is not None and not domain.is_valid(value):
        _log.warning(
            "A point of points_to_evaluate has %s=%r, which is outside the space's domain, %s. Hocket tries it anyway.",
            paths.describe_path(path), value, domain.domain_str,
        )  # fmt: skip
