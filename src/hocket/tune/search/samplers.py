"""How values lie in a domain, and what a domain checks."""

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
"""Where random numbers come from: a generator, a seed, or None for one that differs each time."""

_INT64: Final = 2**63


class Sampler:
    """How values lie in a domain."""


@dataclass(frozen=True)
class Uniform(Sampler):
    """Each value is as likely as any other."""


@dataclass(frozen=True)
class LogUniform(Sampler):
    """The logarithm is uniform, so each order of magnitude is as likely as any other."""


@dataclass(frozen=True)
class Normal(Sampler):
    """The bell curve.

    Raises:
        TypeError: Something is no number.
        ValueError: `sd` is not positive, or something is not finite.
    """

    mean: float = 0.0
    """Its middle."""
    sd: float = 1.0
    """Its standard deviation."""

    def __post_init__(self) -> None:
        if not math.isfinite(check_number("mean", self.mean)):
            raise ValueError(f"mean must be a finite number, but received {self.mean!r}. Write mean=0.0.")
        if not 0 < check_number("sd", self.sd) < math.inf:
            raise ValueError(
                f"sd must be more than 0 and finite, but received {self.sd!r}. A value that does not vary is a "
                "constant: write it as it is."
            )


@dataclass(frozen=True)
class Grid(Sampler):
    """Each value is taken in turn, none is drawn."""


@dataclass(frozen=True)
class Quantized(Sampler):
    """The draws of another sampler, rounded to a multiple of `q`.

    Raises:
        TypeError: `q` is no number.
        ValueError: `q` is not positive.
    """

    sampler: Sampler
    """The other one."""
    q: float
    """The quantum."""

    def __post_init__(self) -> None:
        if not 0 < check_number("q", self.q) < math.inf:
            raise ValueError(f"q must be more than 0, but received {self.q!r}. Values become multiples of it.")

    def get_sampler(self) -> Sampler:
        """Return the sampler whose values are rounded."""
        return self.sampler


# --- what they check --------------------------------------------------------------------------------------------------


def get_generator(random_state: RandomState) -> np.random.Generator:
    """Return a generator; what comes from an older one or a seed depends on that alone."""
    if isinstance(random_state, np.random.RandomState):
        return np.random.default_rng(random_state.randint(0, 2**31, 4).tolist())
    return np.random.default_rng(random_state)


def check_number(name: str, value: object) -> float:
    """Return a number as it is."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, but received {value!r}.{_suggest_number(value)}")
    if math.isnan(value):
        raise ValueError(f"{name} must be a number, but received {value!r}. Look at where it was computed.")
    return value  # type: ignore[return-value]


def check_values(caller: str, values: object) -> list[object]:
    """Return what a choice or a grid consists of."""
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise TypeError(
            f"{caller} must be given a list of values, but received {values!r}. For one value write "
            f"{caller}([{values!r}])."
        )
    if isinstance(values, set | frozenset):
        raise TypeError(
            f"{caller} must be given values in an order, but received the set {values!r}, whose order differs from "
            f"run to run. Write {caller}(sorted(...))."
        )
    found = list(values)
    if not found:
        raise ValueError(
            f"{caller} must be given at least one value, but received {values!r}. Leave the key out of the space, or "
            "write a value."
        )
    return found


def find_equal(values: Collection[object], wanted: Any) -> int | None:
    """Return where a value is, None if it is not there. Values without a plain ``==``, as arrays, are the same or not.
    True is not 1, and 1 is 1.0."""
    for place, value in enumerate(values):
        if value is wanted:
            return place
        if isinstance(value, bool) == isinstance(wanted, bool):
            same = value == wanted
            if isinstance(same, bool | np.bool_) and same:
                return place
    return None


def warn_of_base(base: object) -> None:
    """Say that a base of the logarithm makes no difference, if one was given."""
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
            f"{name} must be an integer, but received {value!r}. For floats there are uniform(...) and quniform(...)."
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
