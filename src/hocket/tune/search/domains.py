"""Domains of hyperparameters, and the drawing of values.

A domain holds bounds or categories, and a sampler, which sets the distribution of its values. Both are stateless
values; random numbers come from a generator that the caller passes. `hocket.tune.search.space` makes domains.
"""

from __future__ import annotations

import abc
import dataclasses
import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self, final

import numpy as np

from hocket.tune.search import samplers


@dataclass(frozen=True)
class Domain(abc.ABC):
    """A hyperparameter's domain: a range of numbers, several values, or the results of a function."""

    def cast(self, value: Any) -> Any:
        """Return a drawn value in the domain's type."""
        return value

    def get_sampler(self) -> samplers.Sampler:
        """Return the domain's sampler."""
        sampler: samplers.Sampler | None = getattr(self, "sampler", None)
        return samplers.Uniform() if sampler is None else sampler

    def sample(self, config: object = None, size: int = 1, random_state: samplers.RandomState = None) -> Any:
        """Draw values.

        Args:
            config: The argument of a `Function`; other domains ignore it.
            size: The number of values.
            random_state: A NumPy Generator, whose state advances; or a seed. Default: other values each time.

        Returns:
            A value; for a `size` above 1 an array of numbers or a list.

        Raises:
            ValueError: `size` is less than 1, or the domain is a grid, whose values are taken in turn (`grid_search`).
        """
        if size < 1:
            raise ValueError(f"size must be 1 or more, but received {size!r}.")
        found = self._draw(samplers.get_generator(random_state), config, size)
        return self.cast(found[0]) if size == 1 else found

    @abc.abstractmethod
    def _draw(self, generator: np.random.Generator, config: object, size: int) -> Any: ...

    @abc.abstractmethod
    def is_valid(self, value: object) -> bool:
        """Return whether the domain can yield a value, up to rounding to a quantum."""

    def is_grid(self) -> bool:
        """Return whether the values are taken in turn."""
        return isinstance(self.get_sampler(), samplers.Grid)

    def is_function(self) -> bool:
        """Return whether a function makes the values."""
        return False

    @property
    def domain_str(self) -> str:
        """The values in words."""
        return "(unknown)"


@dataclass(frozen=True)
class _Choosable(Domain):
    """A domain whose sampler can be set once."""

    def _choose(self, sampler: samplers.Sampler) -> Self:
        present = getattr(self, "sampler", None)
        if present is not None:
            raise ValueError(
                f"{self!r} already has the sampler {present!r}, so it cannot also have {sampler!r}. Begin with "
                f"{type(self).__name__}(...) without a sampler."
            )
        changes: Any = {"sampler": sampler}
        return dataclasses.replace(self, **changes)

    def uniform(self) -> Self:
        """Return this domain with a uniform distribution."""
        return self._choose(samplers.Uniform())


@final
@dataclass(frozen=True)
class Float(_Choosable):
    """A range of floats with both bounds, or None for a side without a bound.

    Raises:
        TypeError: A bound is no number.
        ValueError: The bounds are reversed or NaN, or do not suit the sampler.

    Example:
        >>> from hocket.tune.search.space import Float
        >>> Float(1e-4, 1e-1).loguniform().is_valid(0.01)
        True
    """

    lower: float | None
    """The least value."""
    upper: float | None
    """The greatest value."""
    sampler: samplers.Sampler | None = None
    """The distribution of values. Default: uniform."""

    def __post_init__(self) -> None:
        lower = -math.inf if self.lower is None else samplers.check_number("lower", self.lower)
        upper = math.inf if self.upper is None else samplers.check_number("upper", self.upper)
        object.__setattr__(self, "lower", lower)
        object.__setattr__(self, "upper", upper)
        if lower > upper:
            raise ValueError(f"lower must not be more than upper, but received {lower!r} and {upper!r}. Swap them.")
        if self.sampler is not None:
            self._check_sampler(self.sampler, lower, upper)

    def _check_sampler(self, sampler: samplers.Sampler, lower: float, upper: float) -> None:
        if isinstance(sampler, samplers.Quantized):
            for name, bound in (("lower", lower), ("upper", upper)):
                if math.isfinite(bound) and not samplers.is_multiple(bound, sampler.q):
                    raise ValueError(
                        f"{name} must be a multiple of q={sampler.q!r}, but received {bound!r}. The nearest are "
                        f"{math.floor(bound / sampler.q) * sampler.q!r} and "
                        f"{math.ceil(bound / sampler.q) * sampler.q!r}."
                    )
            self._check_sampler(sampler.sampler, lower, upper)
        elif isinstance(sampler, samplers.Normal):
            if math.isfinite(lower) or math.isfinite(upper):
                raise ValueError(
                    f"Normally distributed values have no bounds, but received {lower!r} and {upper!r}. Write "
                    "randn(mean, sd), or clip the values in the trial's function."
                )
        elif not (math.isfinite(lower) and math.isfinite(upper)):
            raise ValueError(
                f"{type(sampler).__name__} needs two finite bounds, but received {lower!r} and {upper!r}. Write "
                "randn(mean, sd) for values without bounds."
            )
        elif isinstance(sampler, samplers.LogUniform):
            samplers.check_logarithm(lower, upper)

    def cast(self, value: Any) -> float:
        return float(value)

    def loguniform(self, base: object = None) -> Self:
        """Return this domain with a uniform distribution of the logarithm. `base` is ignored."""
        samplers.warn_of_base(base)
        return self._choose(samplers.LogUniform())

    def normal(self, mean: float = 0.0, sd: float = 1.0) -> Self:
        """Return this domain, which must have no bounds, with a normal distribution."""
        return self._choose(samplers.Normal(mean, sd))

    def quantized(self, q: float) -> Self:
        """Return this domain with values rounded to multiples of `q`."""
        return dataclasses.replace(self, sampler=samplers.Quantized(self.get_sampler(), q))

    def _draw(self, generator: np.random.Generator, config: object, size: int) -> object:
        sampler = self.get_sampler()
        values = self._draw_with(
            sampler.sampler if isinstance(sampler, samplers.Quantized) else sampler, generator, size
        )
        if isinstance(sampler, samplers.Quantized):
            values = np.round(values / sampler.q) * sampler.q
        # Rounding of the logarithm and the quantum may leave the range by the last bit.
        return np.clip(values, self.lower, self.upper)

    def _draw_with(self, sampler: samplers.Sampler, generator: np.random.Generator, size: int) -> Any:
        if isinstance(sampler, samplers.Normal):
            return generator.normal(sampler.mean, sampler.sd, size)
        lower, upper = self._get_bounds()
        if isinstance(sampler, samplers.LogUniform):
            return np.exp(generator.uniform(math.log(lower), math.log(upper), size))
        return generator.uniform(lower, upper, size)

    def _get_bounds(self) -> tuple[float, float]:
        assert self.lower is not None
        assert self.upper is not None
        return self.lower, self.upper

    def is_valid(self, value: Any) -> bool:
        lower, upper = self._get_bounds()
        return samplers.is_real(value) and lower <= value <= upper

    @property
    def domain_str(self) -> str:
        return f"({self.lower}, {self.upper})"


@final
@dataclass(frozen=True)
class Integer(_Choosable):
    """A range of integers, without the upper bound, unless a quantum other than 1 is set.

    Raises:
        TypeError: A bound is no integer.
        ValueError: The bounds are reversed, or leave no value.

    Example:
        >>> from hocket.tune.search.space import Integer
        >>> Integer(1, 5).sample(random_state=7)
        4
    """

    lower: int
    """The least value."""
    upper: int
    """One above the greatest value; with a quantum other than 1, the greatest value."""
    sampler: samplers.Sampler | None = None
    """The distribution of values. Default: uniform."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "lower", samplers.check_integer("lower", self.lower))
        object.__setattr__(self, "upper", samplers.check_integer("upper", self.upper))
        sampler = self.sampler
        if isinstance(sampler, samplers.Quantized):
            samplers.check_integer("q", sampler.q)
            sampler = sampler.sampler
        if isinstance(sampler, samplers.LogUniform):
            samplers.check_logarithm(self.lower, self.upper)
        if self.lower > self.upper:
            raise ValueError(
                f"lower must be less than upper, but received {self.lower!r} and {self.upper!r}. Swap them."
            )
        if self.get_range():
            return
        if self.get_quantum() == 1:
            raise ValueError(
                f"lower must be less than upper, which is itself excluded, but received {self.lower!r} and "
                f"{self.upper!r}. For the one value {self.lower} write upper={self.lower + 1}, or the value itself."
            )
        raise ValueError(
            f"There is no multiple of q={self.get_quantum()} from {self.lower} to {self.upper}. Write wider bounds, or "
            "a smaller q."
        )

    def get_quantum(self) -> int:
        """Return the quantum: all values are its multiples."""
        return int(self.sampler.q) if isinstance(self.sampler, samplers.Quantized) else 1

    def get_range(self) -> range:
        """Return all values."""
        q = self.get_quantum()
        return range(-(-self.lower // q) * q, self.upper + (0 if q == 1 else 1), q)

    def cast(self, value: Any) -> int:
        return int(value)

    def loguniform(self, base: object = None) -> Self:
        """Return this domain with a uniform distribution of the logarithm. `base` is ignored."""
        samplers.warn_of_base(base)
        return self._choose(samplers.LogUniform())

    def quantized(self, q: int) -> Self:
        """Return this domain with multiples of `q` only, including both bounds unless `q` is 1."""
        return dataclasses.replace(self, sampler=samplers.Quantized(self.get_sampler(), q))

    def _draw(self, generator: np.random.Generator, config: object, size: int) -> object:
        values, sampler = self.get_range(), self.get_sampler()
        q = values.step
        low, high = values.start // q, values.start // q + len(values)
        if isinstance(sampler.sampler if isinstance(sampler, samplers.Quantized) else sampler, samplers.LogUniform):
            drawn = np.exp(generator.uniform(math.log(low), math.log(high), size))
            places = np.clip(np.floor(drawn).astype(np.int64), low, high - 1)
        else:
            places = generator.integers(low, high, size)
        return places * q

    def is_valid(self, value: Any) -> bool:
        return samplers.is_real(value) and self.lower <= value and (value < self.upper or value in self.get_range())

    @property
    def domain_str(self) -> str:
        return f"({self.lower}, {self.upper})"


@final
@dataclass(frozen=True)
class Categorical(_Choosable):
    """Several values of any type. A value that is a dict or list may hold domains of its own.

    Raises:
        TypeError: The values have no order of their own (a set), or are a string.
        ValueError: There are no values.

    Example:
        >>> from hocket.tune.search.space import Categorical
        >>> Categorical(["relu", "tanh"]).is_valid("tanh")
        True
    """

    categories: Sequence[object]
    """The values."""
    sampler: samplers.Sampler | None = None
    """The distribution of values. Default: uniform."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "categories", tuple(samplers.check_values("choice", self.categories)))

    def grid(self) -> Self:
        """Return this domain as a grid, whose values are taken in turn, as in `grid_search`."""
        return self._choose(samplers.Grid())

    def __len__(self) -> int:
        return len(self.categories)

    def __getitem__(self, item: int) -> object:
        return self.categories[item]

    def _draw(self, generator: np.random.Generator, config: object, size: int) -> object:
        if self.is_grid():
            raise ValueError(
                f"A grid takes the values {self.domain_str} in turn, and cannot draw one of them. Write choice(...) "
                "to draw."
            )
        return [self.categories[place] for place in generator.integers(0, len(self.categories), size)]

    def is_valid(self, value: object) -> bool:
        return samplers.find_equal(self.categories, value) is not None

    @property
    def domain_str(self) -> str:
        return f"{list(self.categories)}"


@final
@dataclass(frozen=True)
class Function(Domain):
    """The results of a function, which may use the values that were drawn before.

    Raises:
        TypeError: The function cannot be called.
        ValueError: The function requires more than one argument.

    Example:
        >>> from hocket.tune.search.space import Function
        >>> Function(lambda config: 2 * config["width"]).sample({"width": 8})
        16
    """

    func: Callable[..., Any]
    """The function of the configuration, or of no arguments."""

    def __post_init__(self) -> None:
        if not callable(self.func):
            raise TypeError(
                f"sample_from takes a function, but received {self.func!r}. Write sample_from(lambda config: 2 * "
                'config["x"]); write a constant into the space as it is.'
            )
        if not (self.passes_config or self._binds()):
            raise ValueError(
                f"sample_from's function must take the configuration, or nothing, but {self.func!r} has the arguments "
                f'{inspect.signature(self.func)}. Write sample_from(lambda config: 2 * config["x"]).'
            )

    @property
    def passes_config(self) -> bool:
        """Whether the function takes the configuration."""
        return self._binds({})

    def _binds(self, *args: object) -> bool:
        try:
            inspect.signature(self.func).bind(*args)
        except TypeError:
            return False
        except ValueError:  # a built-in function without a signature
            return True
        return True

    def _draw(self, generator: np.random.Generator, config: object, size: int) -> object:
        if not self.passes_config:
            return [self.func() for _ in range(size)]
        configs = config if isinstance(config, list) else [config] * size
        return [self.func(configs[place]) for place in range(size)]

    def is_valid(self, value: object) -> bool:
        return True

    def is_function(self) -> bool:
        return True

    @property
    def domain_str(self) -> str:
        return f"{self.func}()"
