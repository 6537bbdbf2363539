"""Our spaces in Optuna's form: domains become distributions, and nested keys are joined by ``/``."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, final

from hocket.tune import errors
from hocket.tune.search import domains, paths, samplers
from hocket.tune.search.optuna import adapter


class OptunaSpace(Protocol):
    """A space that makes proposals, and reads configurations."""

    def ask(self, study: Any) -> tuple[Any, dict[str, Any]]:
        """Begin a trial; return it with its configuration."""

    def build_config(self, frozen: Any) -> dict[str, Any]:
        """Return the configuration of a trial in the study."""

    def read(self, config: Mapping[str, Any], partial: bool = False) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return a configuration's parameters and their distributions, in Optuna's form."""


@dataclass(frozen=True)
class _Parameter:
    """A hyperparameter in both forms."""

    path: paths.Path
    """The hyperparameter's path in the configuration."""
    distribution: object
    """Optuna's distribution."""
    categories: tuple[object, ...] | None = None
    """The values, if Optuna cannot store them and gets their indices instead."""

    @property
    def name(self) -> str:
        return "/".join(map(str, self.path))

    def decode(self, value: Any) -> Any:
        return value if self.categories is None else self.categories[value]

    def encode(self, value: Any) -> Any:
        if self.categories is None:
            return value
        place = samplers.find_equal(self.categories, value)
        if place is None:
            raise ValueError(
                f"{self.name!r} must be one of {list(self.categories)}, but received {value!r}. Write one of them."
            )
        return place


@final
class DeclaredSpace:
    """A space that is known beforehand: a dict of domains, Optuna's distributions, or both, with constants.

    Args:
        space: The dict, which may be nested.

    Raises:
        TypeError: A value looks like a domain but is none.
        ValueError: Optuna cannot draw a domain, or there is none to draw.
    """

    def __init__(self, space: Mapping[str, Any]) -> None:
        self._template = _nest(dict(space))
        found = list(_find_parameters(self._template, ()))
        self._parameters = {each.name: each for each in found}
        if len(self._parameters) < len(found):
            names = sorted(name for name, count in Counter(each.name for each in found).items() if count > 1)
            raise ValueError(
                "Optuna identifies hyperparameters by their names as text, but OptunaSearch's space has several with "
                f"the name {names[0]!r}, such as the keys 1 and '1'. Rename one of them."
            )
        self._distributions = {name: each.distribution for name, each in self._parameters.items()}
        if not self._parameters:
            raise ValueError(
                f"OptunaSearch's space must have something to draw, but received {space!r}. Write "
                '{"lr": loguniform(1e-4, 1e-1)}.'
            )

    def ask(self, study: Any) -> tuple[object, dict[str, object]]:
        trial = study.ask(fixed_distributions=self._distributions)
        return trial, self.build_config(trial)

    def build_config(self, frozen: Any) -> dict[str, object]:
        params = frozen.params
        values = {each.path: each.decode(params[name]) for name, each in self._parameters.items()}
        found: dict[str, object] = paths.assign(self._template, values)
        return found

    def read(self, config: Mapping[str, object], partial: bool = False) -> tuple[dict[str, object], dict[str, object]]:
        """Return a configuration's parameters and their distributions.

        Args:
            config: A configuration, nested or with joined keys.
            partial: Whether values may be missing. Unknown ones are then an error.
        """
        params: dict[str, object] = {}
        for name, each in self._parameters.items():
            try:
                params[name] = each.encode(config[name] if name in config else paths.get_value(config, each.path))
            except LookupError:
                if not partial:
                    raise ValueError(
                        f"A configuration must have {name!r}, but received {dict(config)!r}. The space has the keys "
                        f"{list(self._parameters)}."
                    ) from None
        unknown = [key for key in config if partial and key not in self._template and key not in self._parameters]
        if unknown:
            raise ValueError(
                f"A point must have only keys of the space, {list(self._parameters)}, but received {unknown[0]!r}. "
                "Leave it out."
            )
        return params, {name: self._distributions[name] for name in params}


@final
class DefinedByRun:
    """A space that a function defines by its calls on a trial.

    Args:
        define: A function that suggests values on an Optuna trial, and may return a dict of constants.
    """

    def __init__(self, define: Any) -> None:
        self._define = define

    def ask(self, study: Any) -> tuple[object, dict[str, object]]:
        trial = study.ask()
        return trial, self._run(trial, trial)

    def build_config(self, frozen: Any) -> dict[str, object]:
        return self._run(adapter.load().trial.FixedTrial(frozen.params), frozen)

    def read(self, config: Mapping[str, object], partial: bool = False) -> tuple[dict[str, object], dict[str, object]]:
        params = dict(_flatten(config))
        if partial:  # missing values may decide which ones the function suggests
            return params, {}
        trial = adapter.load().trial.FixedTrial(params)
        try:
            self._run(trial, trial)
        except ValueError as error:
            raise ValueError(
                f"The function that defines the space cannot make the configuration {dict(config)!r} again: {error}. "
                "Has the function changed since the search began?"
            ) from error
        return trial.params, trial.distributions

    def _run(self, trial: object, described: Any) -> dict[str, object]:
        constants = self._define(trial)
        if constants is not None and not (
            isinstance(constants, dict) and all(isinstance(key, str) for key in constants)
        ):
            raise TypeError(
                "The function that defines the space must return None, or a dict of constants with str keys, but "
                f'returned {constants!r}. Suggested values need not be returned: write return {{"epochs": 10}}.'
            )
        found: dict[str, object] = {}
        for name, value in {**described.params, **(constants or {})}.items():
            _put(found, name.split("/"), value)
        return found


def build(space: Any) -> OptunaSpace:
    """Return the space of a dict or a function."""
    if isinstance(space, Mapping):
        return DeclaredSpace(space)
    if callable(space):
        return DefinedByRun(space)
    raise TypeError(
        "OptunaSearch's space must be a dict of domains, or a function that suggests values of a trial, but received "
        f'{space!r}. Write {{"lr": loguniform(1e-4, 1e-1)}}.'
    )


def convert(domain: domains.Domain, path: paths.Path) -> Any:
    """Return the distribution equal to a domain.

    Raises:
        ValueError: There is none. The message offers a replacement.
    """
    optuna, name = adapter.load(), paths.describe_path(path)
    sampler = domain.get_sampler()
    quantum = sampler.q if isinstance(sampler, samplers.Quantized) else None
    inner = sampler.sampler if isinstance(sampler, samplers.Quantized) else sampler
    is_log = isinstance(inner, samplers.LogUniform)
    if isinstance(domain, domains.Float) and not isinstance(inner, samplers.Normal):
        if is_log and quantum is not None:
            warnings.warn(
                f"Optuna does not round values on a logarithmic scale, so q={quantum!r} of {name} is ignored. Round "
                "the value in the trial's function.",
                UserWarning,
                stacklevel=2,
            )
        return optuna.distributions.FloatDistribution(
            domain.lower, domain.upper, log=is_log, step=None if is_log else quantum
        )
    if isinstance(domain, domains.Integer):
        values = domain.get_range()
        if is_log and values.step != 1:
            raise ValueError(
                f"Optuna does not draw multiples on a logarithmic scale, but {name} is {domain!r}. Write "
                f"lograndint({values.start // values.step}, {values[-1] // values.step + 1}), and multiply by "
                f"{values.step} in the trial's function."
            )
        return optuna.distributions.IntDistribution(values.start, values[-1], log=is_log, step=values.step)
    remedy = {
        domains.Float: "Write uniform(mean - 3 * sd, mean + 3 * sd), or quniform.",
        domains.Function: (
            "Give OptunaSearch a function instead of a dict: def define(trial): ... trial.suggest_float(...)."
        ),
        domains.Categorical: "Write choice(...), or OptunaSearch(sampler=optuna.samplers.GridSampler(...)).",
    }.get(type(domain), "Write one of the domains of hocket.tune.")
    raise ValueError(f"Optuna cannot draw {name}, which is {domain!r}. {remedy}")


def _find_parameters(value: object, path: paths.Path) -> Iterator[_Parameter]:
    if isinstance(value, adapter.load().distributions.BaseDistribution):
        yield _Parameter(path, value)
        return
    domain = paths.find_domain(value, path)
    if isinstance(domain, domains.Categorical) and not domain.is_grid():
        yield _convert_choice(domain, path)
    elif domain is not None:
        yield _Parameter(path, convert(domain, path))
    else:
        for key, item in paths.get_items(value):
            if isinstance(key, str) and "/" in key and paths.is_open(item):
                raise ValueError(
                    f"A key of OptunaSearch's space must have no '/', but received {key!r}. Nest the dicts instead."
                )
            yield from _find_parameters(item, (*path, key))


def _convert_choice(domain: domains.Categorical, path: paths.Path) -> _Parameter:
    categorical = adapter.load().distributions.CategoricalDistribution
    if any(paths.is_open(value) for value in domain.categories):
        raise ValueError(
            f"Optuna cannot draw choices that hold domains, but {paths.describe_path(path)} is {domain.domain_str}. "
            "Give OptunaSearch a function instead of a dict: def define(trial): ... trial.suggest_categorical(...)."
        )
    if all(value is None or type(value) in (bool, int, float, str) for value in domain.categories):
        return _Parameter(path, categorical(domain.categories))
    return _Parameter(path, categorical(range(len(domain.categories))), tuple(domain.categories))


def _nest(space: dict[str, Any]) -> dict[str, Any]:
    """Return a space with the joined keys of Optuna's distributions nested."""
    base = adapter.load().distributions.BaseDistribution
    found: dict[str, Any] = {}
    for key, value in space.items():
        joined = "/" in str(key) and isinstance(value, base)
        _put(found, key.split("/") if joined else [key], _nest(value) if isinstance(value, dict) else value)
    return found


def _put(target: dict[str, Any], keys: list[str], value: Any) -> None:
    for key in keys[:-1]:
        target = target.setdefault(key, {})
        if not isinstance(target, dict):
            raise errors.TuneError(f"{'/'.join(keys)!r} lies inside of {key!r}, which is a value. Rename one of them.")
    if keys[-1] in target:
        raise errors.TuneError(f"There are two values for {'/'.join(keys)!r}. Rename one of them.")
    target[keys[-1]] = value


def _flatten(config: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from _flatten(value, f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", value
