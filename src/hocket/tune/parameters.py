"""Large objects for trials, sent once."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from hocket.core import api
from hocket.tune import trainable as trainables


def with_parameters(trainable: object, **kwargs: object) -> Any:
    """Return a trainable whose function, or whose ``setup``, is also given these objects, by name.

    They are put into the object store once, and each trial's process reads them from there.

    Args:
        trainable: A function of the configuration and these names, or a `Trainable` whose ``setup`` takes them.
        **kwargs: The objects.

    Raises:
        TypeError: It is neither.

    Example:
        >>> from hocket import tune
        >>> def objective(config, data):
        ...     return {"score": sum(data) * config["x"]}
        >>> tuner = tune.Tuner(
        ...     tune.with_parameters(objective, data=[1, 2, 3]),
        ...     param_space={"x": tune.grid_search([1, 2])},
        ...     run_config=tune.RunConfig(verbose=0),
        ... )
        >>> tuner.fit().get_best_result("score", "max").metrics["score"]
        12
    """
    if inspect.isclass(trainable) and issubclass(trainable, trainables.Trainable):
        return _build_class(trainable, kwargs)
    if not callable(trainable):
        raise TypeError(
            f"with_parameters() takes a function or a Trainable, but received {trainable!r}. Pass the function itself."
        )
    refs: dict[str, Any] = {}

    def called(config: dict[str, object]) -> object:
        return trainable(config, **{name: api.get(ref) for name, ref in refs.items()})

    found = functools.wraps(trainable)(called)
    del found.__wrapped__  # its signature is its own
    found.prepare_trials = lambda: _put(refs, kwargs)  # type: ignore[attr-defined]  # see `prepare`
    return found


def _build_class(kind: type[trainables.Trainable], given: dict[str, object]) -> type[trainables.Trainable]:
    refs: dict[str, Any] = {}

    class WithParameters(kind):  # type: ignore[valid-type, misc]  # a class that is given
        def setup(self, config: dict[str, object]) -> None:
            super().setup(config, **{name: api.get(ref) for name, ref in refs.items()})

        @staticmethod
        def prepare_trials() -> None:
            _put(refs, given)

    WithParameters.__name__ = WithParameters.__qualname__ = kind.__name__
    return WithParameters


def _put(refs: dict[str, object], given: dict[str, object]) -> None:
    refs.clear()
    refs.update({name: api.put(value) for name, value in given.items()})


def prepare(trainable: object) -> None:
    """Put what a trainable was given into the store of the session, which is open."""
    prepare_trials = getattr(trainable, "prepare_trials", None)
    if prepare_trials is not None:
        prepare_trials()
