"""The space that a search goes through: what each hyperparameter may be.

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
    """Draw a float uniformly.

    Args:
        lower: The least value.
        upper: The greatest.

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
    """Draw a float uniformly, and round it to a multiple of `q`. Both bounds can be drawn.

    Args:
        lower: The least value, a multiple of `q`.
        upper: The greatest, a multiple of `q`.
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
    """Draw a float so that each order of magnitude is as likely as any other.

    Args:
        lower: The least value, above 0; not its logarithm.
        upper: The greatest.
        base: Ignored; for programs written for older versions of Ray.

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
    """Draw as `loguniform` does, and round to a multiple of `q`. Both bounds can be drawn.

    Args:
        lower: The least value, a multiple of `q` above 0.
        upper: The greatest, a multiple of `q`.
        q: The quantum.
        base: Ignored; for programs written for older versions of Ray.

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
    """Draw a float from the bell curve.

    Args:
        mean: Its middle. Default: 0.
        sd: Its standard deviation. Default: 1.

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
    """Draw a float from the bell curve, and round it to a multiple of `q`.

    Args:
        mean: Its middle.
        sd: Its standard deviation.
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
    """Draw an integer uniformly.

    Args:
        lower: The least value.
        upper: One above the greatest.

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
    """Draw a multiple of `q` uniformly.

    Args:
        lower: The least value that may be drawn.
        upper: The greatest; one above the greatest if `q` is 1.
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
    """Draw an integer so that each order of magnitude is as likely as any other.

    Args:
        lower: The least value, above 0.
        upper: One above the greatest.
        base: Ignored; for programs written for older versions of Ray.

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
    """Draw a multiple of `q` so that each order of magnitude is as likely as any other.

    Args:
        lower: The least value that may be drawn, above 0.
        upper: The greatest; one above the greatest if `q` is 1.
        q: The quantum.
        base: Ignored; for programs written for older versions of Ray.

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
    """Draw one of several values.

    Args:
        categories: The values, of any type. One that is a dict or list may hold domains of its own, which are drawn if
            it is.

    Raises:
        TypeError: It is a set, whose order is by chance, or a string.
        ValueError: It is empty.

    Example:
        >>> from hocket.tune.search.space import choice, uniform
        >>> optimizer = choice([{"name": "adam"}, {"name": "sgd", "momentum": uniform(0, 1)}])
        >>> optimizer.sample(random_state=2)
        {'name': 'sgd', 'momentum': Float(lower=0, upper=1, sampler=Uniform())}
    """
    return Categorical(categories, Uniform())


def sample_from(func: Callable[..., object]) -> Function:
    """Take what a function returns.

    The order of the keys does not matter: a function that reads a value which is not drawn yet is called again later.
    numpy's and Python's global random numbers are seeded for the call, so that it depends on the search's seed too.

    Args:
        func: Called with the configuration as far as it is drawn, or with nothing. ``config["x"]`` is a value of it;
            ``spec.config.x`` and ``spec["config"]["x"]`` are too.

    Raises:
        TypeError: It cannot be called.
        ValueError: It takes more than one argument.

    Example:
        >>> from hocket.tune.search.space import randint, sample_from
        >>> space = {"width": randint(4, 9), "heads": sample_from(lambda config: config["width"] // 2)}
        >>> space["heads"].sample({"width": 8})
        4
    """
    return Function(func)


def grid_search(values: Iterable[object]) -> dict[str, list[Any]]:
    """Take each of several values in turn, with each combination of those of other grids.

    Args:
        values: The values, of any type.

    Returns:
        ``{"grid_search": values}``, which may also be written as it is.

    Raises:
        TypeError: It is a set, whose order is by chance, a dict, or no sequence.
        ValueError: It is empty.

    Example:
        >>> from hocket.tune.search.space import grid_search
        >>> grid_search([16, 32])
        {'grid_search': [16, 32]}
    """
    return {"grid_search": samplers.check_values("grid_search", values)}


keywords.guard_functions(__name__)
