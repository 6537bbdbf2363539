"""The configurations of a space, each by its number.

Configuration 7,000 is made without the 6,999 before it: the combination of grid values follows from the number, and
what is drawn comes from a generator seeded with the search's seed and the number. So a search that goes on after a
crash begins where it was, and how many trials run at once changes nothing.

The order is Ray's: for each sample all combinations of the grids, where the grid whose path comes first in the alphabet
varies fastest. A grid's value may hold grids itself, which then vary inside that value.
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
        space: Constants, domains and grids in nested dicts and lists. Constants of any type are left alone.
        num_samples: How often all grids are gone through; how many configurations there are, if there is no grid. -1:
            without end.
        seed: 0 or more. Together with a configuration's number it says what is drawn.
        constant_grid_search: Whether what is drawn is the same for all combinations of one sample.
        points_to_evaluate: Values for the first samples, one point for each. What a point does not mention is drawn or
            gone through.

    Raises:
        TypeError: The space is no dict, or something in it is no domain but looks like one.
        ValueError: A number is out of range, a grid is empty, written wrongly, or in a choice, or a point has keys that
            the space does not have.
        TuneError: There is a grid, and `num_samples` is -1.

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
                f"num_samples=-1 goes on without end, but the space has the grid {names}, which would be gone through "
                "for ever. Give num_samples, or write choice(...) for grid_search(...)."
            )
        self._points = [points.fill(self._space, point) for point in points_to_evaluate]
        self._point_counts = [_count_grid(point) for point in self._points]

    def count(self) -> int | None:
        """Return how many configurations there are; None if there is no end."""
        if self._num_samples == -1:
            return None
        return sum(self._point_counts) + max(0, self._num_samples - len(self._points)) * self._per_sample

    def build(self, number: int) -> tuple[dict[str, Any], dict[paths.Path, Any]]:
        """Return a configuration, and what was drawn or taken from a grid in it by its path.

        Args:
            number: From 0.
        """
        total = self.count()
        if number < 0 or (total is not None and number >= total):
            raise IndexError(f"There are {total} configurations, from 0, but number {number!r} was asked for.")
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
        """Return a sample's space, its number, and which combination of its grids a configuration has."""
        for sample, (point, count) in enumerate(zip(self._points, self._point_counts, strict=True)):
            if number < count:
                return point, sample, number
            number -= count
        sample, combination = divmod(number, self._per_sample)
        return self._space, sample + len(self._points), combination


def format_tag(values: Mapping[paths.Path, object]) -> str:
    """Return what was drawn or taken from a grid as a short text that can be part of a file's name.

    Args:
        values: The values by their paths. Of one that holds domains only these are named.

    Example:
        >>> from hocket.tune.search.variants import format_tag
        >>> format_tag({("lr",): 0.1, ("model", "layers"): 2})
        'lr=0.1000,layers=2'
    """
    parts = sorted(values.items(), key=lambda item: paths.sort_key(item[0]))
    return ",".join(f"{_clean(path[-1])}={_clean(value)}" for path, value in parts if not paths.is_open(value))


def find_values(space: object, config: object) -> dict[paths.Path, object]:
    """Return what of a configuration was drawn or taken from a grid, given the space that it was made from.

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
        except LookupError:  # another searcher's configuration need not have it
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
    """Return how many combinations the grids of a space have. Values of a grid may hold grids."""
    return math.prod(sum(map(_count_grid, domain.categories)) for _, domain in _find_grids(space))


def _take_grid(space: object, combination: int, taken: dict[paths.Path, object]) -> Any:
    """Return a space with its grids replaced by one combination of their values, and note the values."""
    grids = _get_sorted_grids(space)
    if not grids:
        return space
    totals = [sum(map(_count_grid, values)) for _, values in grids]
    found: dict[paths.Path, Any] = {}
    inner = 1  # how many combinations the grids inside of the values that are taken have
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
                    f"{paths.describe_path(path)} is a choice that has the grid {value!r}, but how many configurations "
                    "there are must be known before anything is drawn. Write grid_search for the outer one, or choice "
                    "for the inner one."
                )
