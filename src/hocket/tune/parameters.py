"""Large objects for trials, stored once for all trials."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from hocket.core import api
from hocket.tune import trainable as trainables


def with_parameters(trainable: object, **kwargs: object) -> Any:
    """Return a trainable that also receives these objects, by name, in its function or its ``setup``.

    The session stores each object once, and each trial's process reads it from there.

    Args:
        trainable: A function of the configuration and these names, or a `Trainable` whose ``setup`` takes them.
        **kwargs: The objects.

    Raises:
        TypeError: The trainable is neither.

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
    del found.__wrapped__  # `found` has a signature of its own
    found.prepare_trials = lambda: _put(refs, kwargs)  # type: ignore[attr-defined]  # `prepare` calls it
    return found


def _build_class(kind: type[trainables.Trainable], given: dict[str, object]) -> type[trainables.Trainable]:
    refs: dict[str, Any] = {}

    class WithParameters(kind):  # type: ignore[valid-type, misc]  # the base is a variable
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
    """Store the objects of a trainable in the open session."""
    prepare_trials = getattr(trainable, "prepare_trials", None)
    if prepare_trials is not None:
        prepare_trials()
