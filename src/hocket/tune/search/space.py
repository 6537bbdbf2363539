"""Functions that make the domains of a search space.

Domains stand in ``param_space``, a dict that may be nested, beside constants::

    space = {"lr": loguniform(1e-4, 1e-1), "layers": choice([2, 3, 4]), "epochs": 10}
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from hocket import keywords
from hocket.tune.search import samplers
from hocket.tune.search.domains import Categorical as Categorical
from hocket.tune.search.domains import Domain as Domain
from hocket.tune.search.domains import Float as Float
from hocket.tune.search.domains import Function as Function
from hocket.tune.search.domains import Integer as Integer
from hocket.tune.search.samplers import Grid as Grid
from hocket.tune.search.samplers import LogUniform as LogUniform
from hocket.tune.search.samplers import Normal as Normal
from hocket.tune.search.samplers import Quantized as Quantized
from hocket.tune.search.samplers import Sampler as Sampler
from hocket.tune.search.samplers import Uniform as Uniform


def uniform(lower: float, upper: float) -> Float:
    """Return a domain of floats with a uniform distribution.

    Args:
        lower: The least value.
        upper: The greatest value.

    Raises:
        TypeError: A bound is no number.
        ValueError: The bounds are reversed, NaN or infinite.

    Example:
        >>> from hocket.tune.search.space import uniform
        >>> round(uniform(0, 1).sample(random_state=1), 3)
        0.512
    """
    return Float(lower, upper, Uniform())


def quniform(lower: float, upper: float, q: float) -> Float:
    """Return a domain of floats with a uniform distribution, rounded to multiples of `q`. It includes both bounds.

    Args:
        lower: The least value, a multiple of `q`.
        upper: The greatest value, a multiple of `q`.
        q: The quantum.

    Raises:
        TypeError: An argument is no number.
        ValueError: The bounds are reversed, NaN, infinite or no multiples of `q`.

    Example:
        >>> from hocket.tune.search.space import quniform
        >>> quniform(0, 1, 0.25).sample(random_state=1)
        0.5
    """
    return Float(lower, upper, Quantized(Uniform(), q))


def loguniform(lower: float, upper: float, base: object = None) -> Float:
    """Return a domain of floats in which all orders of magnitude are equally likely.

    Args:
        lower: The least value, above 0; not its logarithm.
        upper: The greatest value.
        base: Ignored; accepted for programs written for older versions of Ray.

    Raises:
        TypeError: A bound is no number.
        ValueError: The bounds are reversed, NaN, infinite or not above 0.

    Example:
        >>> from hocket.tune.search.space import loguniform
        >>> round(loguniform(1e-4, 1e-1).sample(random_state=1), 5)
        0.00343
    """
    samplers.warn_of_base(base)
    return Float(lower, upper, LogUniform())


def qloguniform(lower: float, upper: float, q: float, base: object = None) -> Float:
    """Return the domain of `loguniform`, rounded to multiples of `q`. It includes both bounds.

    Args:
        lower: The least value, a multiple of `q` above 0.
        upper: The greatest value, a multiple of `q`.
        q: The quantum.
        base: Ignored; accepted for programs written for older versions of Ray.

    Raises:
        TypeError: An argument is no number.
        ValueError: The bounds are reversed, NaN, infinite, not above 0 or no multiples of `q`.

    Example:
        >>> from hocket.tune.search.space import qloguniform
        >>> qloguniform(0.5, 8, 0.5).sample(random_state=1)
        2.0
    """
    samplers.warn_of_base(base)
    return Float(lower, upper, Quantized(LogUniform(), q))


def randn(mean: float = 0.0, sd: float = 1.0) -> Float:
    """Return a domain of floats with a normal distribution.

    Args:
        mean: The mean. Default: 0.
        sd: The standard deviation. Default: 1.

    Raises:
        TypeError: An argument is no number.
        ValueError: `sd` is not above 0, or an argument is not finite.

    Example:
        >>> from hocket.tune.search.space import randn
        >>> round(randn(10, 2).sample(random_state=1), 3)
        10.691
    """
    return Float(None, None, Normal(mean, sd))


def qrandn(mean: float, sd: float, q: float) -> Float:
    """Return a domain of floats with a normal distribution, rounded to multiples of `q`.

    Args:
        mean: The mean.
        sd: The standard deviation.
        q: The quantum.

    Raises:
        TypeError: An argument is no number.
        ValueError: `sd` or `q` is not above 0, or an argument is not finite.

    Example:
        >>> from hocket.tune.search.space import qrandn
        >>> qrandn(10, 2, 0.5).sample(random_state=1)
        10.5
    """
    return Float(None, None, Quantized(Normal(mean, sd), q))


def randint(lower: int, upper: int) -> Integer:
    """Return a domain of integers with a uniform distribution.

    Args:
        lower: The least value.
        upper: One above the greatest value.

    Raises:
        TypeError: A bound is no integer.
        ValueError: No integer lies between the bounds.

    Example:
        >>> from hocket.tune.search.space import randint
        >>> randint(1, 10).sample(random_state=1)
        5
    """
    return Integer(lower, upper, Uniform())


def qrandint(lower: int, upper: int, q: int = 1) -> Integer:
    """Return a domain of multiples of `q` with a uniform distribution.

    Args:
        lower: The least value allowed.
        upper: The greatest value allowed; one above it if `q` is 1.
        q: The quantum.

    Raises:
        TypeError: An argument is no integer.
        ValueError: No multiple of `q` lies between the bounds.

    Example:
        >>> from hocket.tune.search.space import qrandint
        >>> qrandint(32, 128, 32).sample(random_state=1)
        64
    """
    return Integer(lower, upper, Quantized(Uniform(), q))


def lograndint(lower: int, upper: int, base: object = None) -> Integer:
    """Return a domain of integers in which all orders of magnitude are equally likely.

    Args:
        lower: The least value, above 0.
        upper: One above the greatest value.
        base: Ignored; accepted for programs written for older versions of Ray.

    Raises:
        TypeError: A bound is no integer.
        ValueError: No integer lies between the bounds, or `lower` is not above 0.

    Example:
        >>> from hocket.tune.search.space import lograndint
        >>> lograndint(1, 1000).sample(random_state=1)
        34
    """
    samplers.warn_of_base(base)
    return Integer(lower, upper, LogUniform())


def qlograndint(lower: int, upper: int, q: int, base: object = None) -> Integer:
    """Return a domain of multiples of `q` in which all orders of magnitude are equally likely.

    Args:
        lower: The least value allowed, above 0.
        upper: The greatest value allowed; one above it if `q` is 1.
        q: The quantum.
        base: Ignored; accepted for programs written for older versions of Ray.

    Raises:
        TypeError: An argument is no integer.
        ValueError: No multiple of `q` lies between the bounds, or `lower` is not above 0.

    Example:
        >>> from hocket.tune.search.space import qlograndint
        >>> qlograndint(16, 1024, 16).sample(random_state=1)
        128
    """
    samplers.warn_of_base(base)
    return Integer(lower, upper, Quantized(LogUniform(), q))


def choice(categories: Sequence[object]) -> Categorical:
    """Return a domain of several values.

    Args:
        categories: The values, of any type. A dict or list may hold domains of its own; they are drawn if it is chosen.

    Raises:
        TypeError: `categories` is a set, whose order is random, or a string.
        ValueError: `categories` is empty.

    Example:
        >>> from hocket.tune.search.space import choice, uniform
        >>> optimizer = choice([{"name": "adam"}, {"name": "sgd", "momentum": uniform(0, 1)}])
        >>> optimizer.sample(random_state=2)
        {'name': 'sgd', 'momentum': Float(lower=0, upper=1, sampler=Uniform())}
    """
    return Categorical(categories, Uniform())


def sample_from(func: Callable[..., object]) -> Function:
    """Return a domain whose value is the result of a function.

    The order of the keys does not matter: a function that reads a value before it is drawn is called again later. The
    global generators of NumPy and Python are seeded for the call, so that its result depends on the search's seed, too.

    Args:
        func: A function of the configuration drawn so far, or of no arguments. ``config["x"]`` is a value; so are
            ``spec.config.x`` and ``spec["config"]["x"]``.

    Raises:
        TypeError: `func` cannot be called.
        ValueError: `func` requires more than one argument.

    Example:
        >>> from hocket.tune.search.space import randint, sample_from
        >>> space = {"width": randint(4, 9), "heads": sample_from(lambda config: config["width"] // 2)}
        >>> space["heads"].sample({"width": 8})
        4
    """
    return Function(func)


def grid_search(values: Iterable[object]) -> dict[str, list[Any]]:
    """Return a grid: each of several values is tried, with each combination of other grids' values.

    Args:
        values: The values, of any type.

    Returns:
        ``{"grid_search": values}``, which the space may also contain directly.

    Raises:
        TypeError: `values` is a set, whose order is random, a dict, or no sequence.
        ValueError: `values` is empty.

    Example:
        >>> from hocket.tune.search.space import grid_search
        >>> grid_search([16, 32])
        {'grid_search': [16, 32]}
    """
    return {"grid_search": samplers.check_values("grid_search", values)}


keywords.guard_functions(__name__)
