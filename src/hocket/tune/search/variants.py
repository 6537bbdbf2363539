"""The configurations of a space, each made from its number.

Configuration 7,000 does not need the 6,999 before it. Its grid values follow from the number, and a generator seeded
with the search's seed and the number draws the rest. So a search that goes on after a crash continues at once, and the
number of trials at a time changes nothing.

The order is Ray's: each sample has all combinations of the grids, and the grid whose path is first in the alphabet
varies fastest. A grid's value may hold grids itself, which vary inside that value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np

from hocket.tune import errors
from hocket.tune.search import domains, paths, points, resolution


@final
class Variants:
    """The configurations of a space.

    Args:
        space: Constants, domains and grids in nested dicts and lists. Constants of any type stay as they are.
        num_samples: The number of passes over all grids, and of configurations if there is no grid. -1: no end.
        seed: 0 or more. With a configuration's number, it determines the drawn values.
        constant_grid_search: Whether all grid combinations of a sample have the same drawn values.
        points_to_evaluate: Values for the first samples, one point for each. Keys that a point lacks are drawn or
            enumerated.

    Raises:
        TypeError: The space is no dict, or a value in it looks like a domain but is none.
        ValueError: A number is out of range, a grid is empty, malformed or in a choice, or a point has unknown keys.
        TuneError: There is a grid, but `num_samples` is -1.

    Example:
        >>> from hocket.tune.search.space import grid_search, randint
        >>> from hocket.tune.search.variants import Variants
        >>> variants = Variants({"a": grid_search([1, 2]), "b": randint(0, 100)}, num_samples=3, seed=1)
        >>> variants.count()
        6
        >>> variants.build(5)[0]["a"]
        2
    """

    def __init__(
        self,
        space: Mapping[str, object],
        num_samples: int,
        seed: int,
        constant_grid_search: bool = False,
        points_to_evaluate: Sequence[Mapping[str, object]] = (),
    ) -> None:
        if not isinstance(space, Mapping):
            raise TypeError(f'param_space must be a dict, but received {space!r}. Write {{"lr": loguniform(1e-4, 1)}}.')
        if num_samples != -1 and num_samples < 1:
            raise ValueError(f"num_samples must be 1 or more, or -1 for no end, but received {num_samples!r}.")
        if seed < 0:
            raise ValueError(f"seed must be 0 or more, but received {seed!r}.")
        self._space = dict(space)
        self._seed, self._num_samples, self._constant = seed, num_samples, constant_grid_search
        _check_choices(self._space)
        self._per_sample = _count_grid(self._space)
        if num_samples == -1 and next(_find_grids(self._space), None):
            names = ", ".join(paths.describe_path(path) for path, _ in _find_grids(self._space))
            raise errors.TuneError(
                f"num_samples=-1 never ends, but the space has the grid {names}, which would be repeated forever. "
                "Give num_samples, or write choice(...) instead of grid_search(...)."
            )
        self._points = [points.fill(self._space, point) for point in points_to_evaluate]
        self._point_counts = [_count_grid(point) for point in self._points]

    def count(self) -> int | None:
        """Return the number of configurations; None if there is no end."""
        if self._num_samples == -1:
            return None
        return sum(self._point_counts) + max(0, self._num_samples - len(self._points)) * self._per_sample

    def build(self, number: int) -> tuple[dict[str, Any], dict[paths.Path, Any]]:
        """Return a configuration, and its values that were drawn or taken from a grid, by path.

        Args:
            number: The configuration's number, from 0.
        """
        total = self.count()
        if number < 0 or (total is not None and number >= total):
            raise IndexError(f"There are {total} configurations, numbered from 0, but received number {number!r}.")
        space, sample, combination = self._find(number)
        generator = np.random.default_rng([self._seed, sample if self._constant else number])
        values: dict[paths.Path, Any] = {}
        if self._constant:
            space, values = resolution.draw(space, generator)
        grid_values: dict[paths.Path, object] = {}
        space = _take_grid(space, combination, grid_values)
        space, drawn = resolution.draw(space, generator)
        return space, {**grid_values, **values, **drawn}

    def _find(self, number: int) -> tuple[dict[str, object], int, int]:
        """Return a configuration's sample space, its sample's number, and the number of its grid combination."""
        for sample, (point, count) in enumerate(zip(self._points, self._point_counts, strict=True)):
            if number < count:
                return point, sample, number
            number -= count
        sample, combination = divmod(number, self._per_sample)
        return self._space, sample + len(self._points), combination


def format_tag(values: Mapping[paths.Path, object]) -> str:
    """Return drawn and grid values as a short text that is safe in a file's name.

    Args:
        values: The values by their paths. A value that holds domains is left out: the domains have their own entries.

    Example:
        >>> from hocket.tune.search.variants import format_tag
        >>> format_tag({("lr",): 0.1, ("model", "layers"): 2})
        'lr=0.1000,layers=2'
    """
    parts = sorted(values.items(), key=lambda item: paths.sort_key(item[0]))
    return ",".join(f"{_clean(path[-1])}={_clean(value)}" for path, value in parts if not paths.is_open(value))


def find_values(space: object, config: object) -> dict[paths.Path, object]:
    """Return the drawn and grid values of a configuration, by path, given the space that it was made from.

    Example:
        >>> from hocket.tune.search.space import uniform
        >>> from hocket.tune.search.variants import find_values
        >>> find_values({"lr": uniform(0, 1), "epochs": 10}, {"lr": 0.5, "epochs": 10})
        {('lr',): 0.5}
    """
    found: dict[paths.Path, Any] = {}
    for path, _ in paths.find_variables(space):
        try:
            found[path] = paths.get_value(config, path)
        except LookupError:  # another searcher's configuration may lack it
            continue
    return found


def _clean(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4f}"
    return re.sub(r"[^a-zA-Z0-9_-]+", "_", str(value)).strip("_")


# --- grids ------------------------------------------------------------------------------------------------------------


def _find_grids(space: object) -> Any:
    return ((path, domain) for path, domain in paths.find_variables(space) if domain.is_grid())


def _get_sorted_grids(space: object) -> list[tuple[paths.Path, Sequence[object]]]:
    grids = [(path, domain.categories) for path, domain in _find_grids(space)]
    return sorted(grids, key=lambda grid: paths.sort_key(grid[0]))


def _count_grid(space: object) -> int:
    """Return the number of combinations of a space's grids. Values of a grid may hold grids."""
    return math.prod(sum(map(_count_grid, domain.categories)) for _, domain in _find_grids(space))


def _take_grid(space: object, combination: int, taken: dict[paths.Path, object]) -> Any:
    """Return a space with one combination of grid values in place, and add these values to `taken`."""
    grids = _get_sorted_grids(space)
    if not grids:
        return space
    totals = [sum(map(_count_grid, values)) for _, values in grids]
    found: dict[paths.Path, Any] = {}
    inner = 1  # the number of combinations of grids inside the chosen values
    for place in range(len(grids) - 1, -1, -1):
        path, values = grids[place]
        below = inner * math.prod(totals[:place])
        for value in values:
            size = below * _count_grid(value)
            if combination < size:
                found[path] = value
                inner *= _count_grid(value)
                break
            combination -= size
    taken.update(found)
    return _take_grid(paths.assign(space, found), combination, taken)


def _check_choices(space: object) -> None:
    for path, domain in paths.find_variables(space):
        if not isinstance(domain, domains.Categorical):
            continue
        for value in domain.categories:
            _check_choices(value)
            if not domain.is_grid() and next(_find_grids(value), None):
                raise ValueError(
                    f"{paths.describe_path(path)} is a choice that has the grid {value!r}, but the number of "
                    "configurations must be known before anything is drawn. Write grid_search for the outer one, or "
                    "choice for the inner one."
                )
