"""The drawing of a space's domains, in an order in which each one finds the values that it needs."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Mapping
from typing import Any, Final, final

import numpy as np

from hocket.tune import errors
from hocket.tune.search import domains, paths

_DEEPEST: Final = 20
"""The greatest depth of domains inside drawn values. Ray's number of passes."""


class NotDrawnError(Exception):
    """An error of a function that reads a value before it is drawn."""

    def __init__(self, path: paths.Path) -> None:
        super().__init__(paths.describe_path(path))
        self.path = path


def draw(space: object, generator: np.random.Generator) -> tuple[Any, dict[paths.Path, Any]]:
    """Return a space with its domains drawn, and the drawn values by path. Grids and functions that read them stay.

    Raises:
        TuneError: A function fails, or depends on itself.
    """
    drawn: dict[paths.Path, object] = {}
    found: list[tuple[paths.Path, domains.Domain]] = []
    for _ in range(_DEEPEST):
        found = [(path, domain) for path, domain in paths.find_variables(space) if not domain.is_grid()]
        values: dict[paths.Path, Any] = {
            path: domain.sample(random_state=generator) for path, domain in found if not domain.is_function()
        }
        space = paths.assign(space, values)
        functions = [(path, domain) for path, domain in found if domain.is_function()]
        space, made = _call_functions(space, functions, generator)
        drawn.update(values)
        drawn.update(made)
        if not values and not made:
            return space, drawn
    raise errors.TuneError(
        f"Domains in drawn values may be nested at most {_DEEPEST} deep, but those at "
        f"{', '.join(paths.describe_path(path) for path, _ in found)} are deeper. Have sample_from return a value "
        "without domains."
    )


def _call_functions(
    space: object, functions: list[tuple[paths.Path, domains.Domain]], generator: np.random.Generator
) -> tuple[object, dict[paths.Path, object]]:
    """Call each function once the values that it reads are drawn. One that reads a grid stays for a later pass."""
    seeds = {path: int(generator.integers(2**32)) for path, _ in functions}
    made: dict[paths.Path, Any] = {}
    waiting = dict(functions)
    while waiting:
        blocked: dict[paths.Path, paths.Path] = {}
        for path, domain in list(waiting.items()):
            try:
                value = _call(path, domain, space, seeds[path])
            except NotDrawnError as error:
                blocked[path] = error.path
                continue
            made[path] = value
            space = paths.assign(space, {path: value})
            del waiting[path]
        if len(blocked) == len(waiting) and blocked:
            _check_cycle(blocked, space)
            break
    return space, made


def _check_cycle(blocked: Mapping[paths.Path, paths.Path], space: object) -> None:
    for start in blocked:
        seen: list[paths.Path] = []
        path = start
        while path in blocked and path not in seen:
            seen.append(path)
            path = blocked[path]
        if path in seen:
            names = [paths.describe_path(each) for each in [*seen[seen.index(path) :], path]]
            raise errors.TuneError(
                f"The functions given to sample_from depend on each other: {' needs '.join(names)}. Make one of them "
                "independent of the others."
            )


def _call(path: paths.Path, domain: domains.Domain, space: Any, seed: int) -> object:
    try:
        with _seeded(seed):
            value = domain.sample(View(space))
    except NotDrawnError:
        raise
    except Exception as error:
        raise errors.TuneError(
            f"The function given to sample_from for {paths.describe_path(path)} failed with "
            f"{type(error).__name__}: {error}. The configuration has the keys {list(space)}."
        ) from error
    if _holds_grid(value):
        raise errors.TuneError(
            f"The function given to sample_from for {paths.describe_path(path)} returned a grid, {value!r}, but the "
            "number of configurations must be known before. Write grid_search in the space itself, or return "
            "choice(...)."
        )
    return value


def _holds_grid(value: object) -> bool:
    return any(domain.is_grid() for _, domain in paths.find_variables(value))


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed Python's and NumPy's global generators, which functions in `sample_from` use; restore them afterwards."""
    before, numpy_before = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before)
        np.random.set_state(numpy_before)


@final
class View(Mapping[Any, Any]):
    """The configuration that functions in `sample_from` receive.

    ``view["x"]`` and ``view.x`` are values; ``view.config`` and ``view["config"]`` are the view itself, unless there is
    such a key. Reading a value that is not drawn yet raises `NotDrawnError`.
    """

    def __init__(self, values: Mapping[object, object], path: paths.Path = ()) -> None:
        self._values, self._path = values, path

    def __getitem__(self, key: object) -> Any:
        if key == "config" and not self._path and "config" not in self._values:
            return self
        return _look(self._values[key], (*self._path, key))

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return self[name]
        except KeyError:
            raise AttributeError(
                f"The configuration has no {name!r} here; its keys are {list(self._values)}.", name=name, obj=self
            ) from None

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return repr(self._values)


@final
class _ListView(list[Any]):
    """A list with values that may not be drawn yet."""

    __slots__ = ("_path",)

    def __init__(self, values: list[object] | tuple[object, ...], path: paths.Path) -> None:
        super().__init__(values)
        self._path = path

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return [self[place] for place in range(len(self))[key]]
        place = range(len(self))[key]
        return _look(super().__getitem__(place), (*self._path, place))

    def __iter__(self) -> Iterator[object]:
        return (self[place] for place in range(len(self)))


def _look(value: object, path: paths.Path) -> object:
    if paths.find_domain(value, path) is not None:
        raise NotDrawnError(path)
    if isinstance(value, dict):
        return View(value, path)
    if isinstance(value, list | tuple) and paths.is_open(value):
        return _ListView(value, path)
    return value
