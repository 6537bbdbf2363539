"""The resources of a running trial."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias, final

from hocket.core import placement
from hocket.engine import node
from hocket.tune import errors, trainable

_ATTRIBUTE: Final = "_hocket_trial_resources"
_NAMES: Final = {"cpu": "CPU", "gpu": "GPU"}


@final
class PlacementGroupFactory:
    """The resources of a trial and of the tasks and actors that it starts.

    Args:
        bundles: Resources by name. The trial itself holds the first bundle, its tasks and actors the others.
        strategy: How to place the bundles; see `hocket.util.placement_group`. On one machine it makes no difference.

    Raises:
        ValueError: There is no bundle, or an amount is negative.

    Example:
        >>> from hocket import tune
        >>> tune.PlacementGroupFactory([{"CPU": 1}, {"CPU": 2}]).required_resources
        {'CPU': 3.0}
    """

    def __init__(
        self, bundles: Sequence[Mapping[str, float]], strategy: str = "PACK", *args: object, **kwargs: object
    ) -> None:
        if isinstance(bundles, Mapping) or not isinstance(bundles, Sequence):
            raise TypeError(
                f"PlacementGroupFactory takes a list of bundles, but received {bundles!r}. Write [{{'CPU': 1}}]."
            )
        if strategy not in node.STRATEGIES:
            raise ValueError(f"strategy must be one of {list(node.STRATEGIES)}, but received {strategy!r}.")
        if not bundles:
            raise ValueError("PlacementGroupFactory needs a bundle, but received []. Write [{'CPU': 1}].")
        self.bundles = [check_resources(bundle) for bundle in bundles]
        self.strategy = strategy

    @property
    def required_resources(self) -> dict[str, float]:
        """The sum of all bundles."""
        total: dict[str, float] = {}
        for bundle in self.bundles:
            for name, amount in bundle.items():
                total[name] = total.get(name, 0.0) + amount
        return total

    @property
    def head_bundle(self) -> dict[str, float]:
        """The resources of the trial itself."""
        return dict(self.bundles[0])

    @property
    def head_cpus(self) -> float:
        """The CPUs of the trial itself."""
        return self.bundles[0].get("CPU", 0.0)

    def __call__(self, *args: object, **kwargs: object) -> placement.PlacementGroup:
        """Reserve the bundles with `hocket.util.placement_group`."""
        return placement.placement_group(self.bundles, self.strategy)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PlacementGroupFactory) and (self.bundles, self.strategy) == (
            other.bundles,
            other.strategy,
        )

    def __hash__(self) -> int:
        return hash((self.strategy, *(tuple(sorted(bundle.items())) for bundle in self.bundles)))

    def __repr__(self) -> str:
        return f"PlacementGroupFactory({self.bundles!r}, strategy={self.strategy!r})"


Wanted: TypeAlias = Mapping[str, float] | PlacementGroupFactory
Request: TypeAlias = Callable[[dict[str, Any]], Wanted | None]
"""A function from a configuration to the resources of its trial; None means one CPU."""


def with_resources(trainable: object, resources: Wanted | Request) -> Any:
    """Return a trainable whose trials hold these resources. Without them, a trial holds one CPU.

    Args:
        trainable: A function or a `Trainable`.
        resources: ``{"cpu": 2, "gpu": 1}``, a `PlacementGroupFactory`, or a function from the configuration to these.

    Raises:
        TypeError: The resources are none of these.
        ValueError: An amount is negative.

    Example:
        >>> from hocket import tune
        >>> def objective(config):
        ...     return {"score": config["x"]}
        >>> tuner = tune.Tuner(
        ...     tune.with_resources(objective, {"cpu": 0.5}),
        ...     param_space={"x": tune.grid_search([1, 2])},
        ...     run_config=tune.RunConfig(verbose=0),
        ... )
        >>> len(tuner.fit())
        2
    """
    request: Request
    if isinstance(resources, PlacementGroupFactory):
        request = functools.partial(_return, resources)
    elif isinstance(resources, Mapping):
        request = functools.partial(_return, check_resources(resources))
    elif callable(resources):
        request = resources
    else:
        raise TypeError(
            f"with_resources() takes a dict, a PlacementGroupFactory or a function of the configuration, but received "
            f"{resources!r}. Write {{'cpu': 2}}."
        )
    if inspect.isclass(trainable):
        return type(
            trainable.__name__, (trainable,), {_ATTRIBUTE: staticmethod(request), "__module__": trainable.__module__}
        )
    if not callable(trainable):
        raise TypeError(
            f"with_resources() takes a function or a Trainable, but received {trainable!r}. For a trainer, set the "
            "resources in its ScalingConfig."
        )

    @functools.wraps(trainable)
    def held(*args: object, **kwargs: object) -> Any:
        return trainable(*args, **kwargs)

    setattr(held, _ATTRIBUTE, request)
    return held


def _return(wanted: Wanted, config: dict[str, object]) -> Wanted:
    return wanted


def check_resources(given: Mapping[str, object]) -> dict[str, float]:
    """Return amounts by resource name; ``"cpu"`` becomes ``"CPU"``, ``"gpu"`` ``"GPU"``."""
    found: dict[str, float] = {}
    custom: Any = given.get("custom_resources", {})  # Ray's name for all other resources
    if not isinstance(custom, Mapping):
        raise TypeError(
            f"custom_resources must be a dict, but received {custom!r}. Write {{'custom_resources': {{'camera': 1}}}}."
        )
    amounts = {name: amount for name, amount in {**given, **custom}.items() if name != "custom_resources"}
    for name, amount in amounts.items():
        if isinstance(amount, bool) or not isinstance(amount, int | float) or not amount >= 0:
            raise ValueError(
                f"The amount of a resource must be a number of 0 or more, but received {name!r}: {amount!r}. Leave "
                "the key out for none."
            )
        found[_NAMES.get(name, name)] = float(amount)
    return found


def find_request(given: object) -> Callable[[dict[str, Any]], dict[str, float]]:
    """Return a function from a configuration to the resources of a trial of `given`, a function or class."""
    request: Request | None = getattr(given, _ATTRIBUTE, None)
    if request is None and inspect.isclass(given) and issubclass(given, trainable.Trainable):
        request = given.default_resource_request

    def find(config: dict[str, object]) -> dict[str, float]:
        wanted = None if request is None else request(config)
        if wanted is None:
            return {"CPU": 1.0}
        if isinstance(wanted, PlacementGroupFactory):
            return wanted.required_resources
        if isinstance(wanted, Mapping):
            return check_resources(wanted)
        raise errors.TuneError(
            "The function of a trial's resources must return a dict or a PlacementGroupFactory, but returned "
            f"{wanted!r}. Write {{'cpu': 2}}."
        )

    return find
