"""Samplers, the distributions of values in a domain, and checks of a domain's arguments."""

from __future__ import annotations

import math
import numbers
import warnings
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from hocket.engine import callers

RandomState: TypeAlias = np.random.Generator | np.random.RandomState | int | None
"""A source of random numbers: a generator, a seed, or None for another one each time."""

_INT64: Final = 2**63


class Sampler:
    """A distribution of the values in a domain."""


@dataclass(frozen=True)
class Uniform(Sampler):
    """A uniform distribution: all values are equally likely."""


@dataclass(frozen=True)
class LogUniform(Sampler):
    """A uniform distribution of the logarithm: all orders of magnitude are equally likely."""


@dataclass(frozen=True)
class Normal(Sampler):
    """A normal distribution.

    Raises:
        TypeError: An argument is no number.
        ValueError: `sd` is not positive, or an argument is not finite.
    """

    mean: float = 0.0
    """The mean."""
    sd: float = 1.0
    """The standard deviation."""

    def __post_init__(self) -> None:
        if not math.isfinite(check_number("mean", self.mean)):
            raise ValueError(f"mean must be a finite number, but received {self.mean!r}. Write mean=0.0.")
        if not 0 < check_number("sd", self.sd) < math.inf:
            raise ValueError(
                f"sd must be more than 0 and finite, but received {self.sd!r}. For a value that does not vary, write "
                "the constant as it is."
            )


@dataclass(frozen=True)
class Grid(Sampler):
    """An enumeration: each value is taken in turn, none is drawn."""


@dataclass(frozen=True)
class Quantized(Sampler):
    """A distribution whose values are rounded to multiples of `q`.

    Raises:
        TypeError: `q` is no number.
        ValueError: `q` is not positive.
    """

    sampler: Sampler
    """The distribution before rounding."""
    q: float
    """The quantum."""

    def __post_init__(self) -> None:
        if not 0 < check_number("q", self.q) < math.inf:
            raise ValueError(f"q must be more than 0, but received {self.q!r}. Values are rounded to multiples of q.")

    def get_sampler(self) -> Sampler:
        """Return the sampler of the values before rounding."""
        return self.sampler


# --- checks -----------------------------------------------------------------------------------------------------------


def get_generator(random_state: RandomState) -> np.random.Generator:
    """Return a generator. From an older generator or a seed, it depends on that alone."""
    if isinstance(random_state, np.random.RandomState):
        return np.random.default_rng(random_state.randint(0, 2**31, 4).tolist())
    return np.random.default_rng(random_state)


def check_number(name: str, value: object) -> float:
    """Check that a value is a number, not NaN, and return it."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, but received {value!r}.{_suggest_number(value)}")
    if math.isnan(value):
        raise ValueError(f"{name} must be a number, but received {value!r}. Check where it was computed.")
    return value  # type: ignore[return-value]


def check_values(caller: str, values: object) -> list[object]:
    """Check the values of a choice or a grid, and return them as a list."""
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise TypeError(
            f"{caller} takes a list of values, but received {values!r}. For one value write {caller}([{values!r}])."
        )
    if isinstance(values, set | frozenset):
        raise TypeError(
            f"{caller} takes values in a fixed order, but received the set {values!r}, whose order differs from run "
            f"to run. Write {caller}(sorted(...))."
        )
    found = list(values)
    if not found:
        raise ValueError(
            f"{caller} takes at least one value, but received {values!r}. Leave the key out of the space, or write a "
            "value."
        )
    return found


def find_equal(values: Collection[object], wanted: Any) -> int | None:
    """Return the index of a value, or None. True does not equal 1, but 1 equals 1.0.

    A value without a plain ``==``, such as an array, only equals itself.
    """
    for place, value in enumerate(values):
        if value is wanted:
            return place
        if isinstance(value, bool) == isinstance(wanted, bool):
            same = value == wanted
            if isinstance(same, bool | np.bool_) and same:
                return place
    return None


def warn_of_base(base: object) -> None:
    """Warn that a base of the logarithm has no effect, if there is one."""
    if base is not None:
        warnings.warn(
            f"base={base!r} is ignored, as the distribution is the same for all bases. Leave it out.",
            DeprecationWarning,
            stacklevel=callers.find_stack_level(),
        )


def _suggest_number(value: object) -> str:
    try:
        return f" Write {float(value)!r} without the quotes." if isinstance(value, str) else ""
    except ValueError:
        return ""


def check_integer(name: str, value: object) -> int:
    number = check_number(name, value)
    if math.isinf(number) or number != int(number):
        raise TypeError(
            f"{name} must be an integer, but received {value!r}. For floats write uniform(...) or quniform(...)."
        )
    if not -_INT64 <= number < _INT64:
        raise ValueError(f"{name} must fit in 64 bits, but received {value!r}. Draw its logarithm, or a float.")
    return int(number)


def check_logarithm(lower: float, upper: float) -> None:
    if not lower > 0:
        raise ValueError(
            f"A logarithmic range must begin above 0, but received lower={lower!r}, upper={upper!r}. Write the bounds "
            "themselves and not their logarithms, such as 1e-4 for -4."
        )


def is_multiple(value: float, q: float) -> bool:
    return math.isclose(value / q, round(value / q), abs_tol=1e-12)


def is_real(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool | np.bool_)
