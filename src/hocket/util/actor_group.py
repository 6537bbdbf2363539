"""A group of equal actors, for older Ray programs.

New programs use a list of actors, or `hocket.util.ActorPool`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hocket.core import actor, api
from hocket.engine import contract


@dataclass(frozen=True)
class ActorWrapper:
    """An actor of a group."""

    actor: actor.ActorHandle
    metadata: object = None
    """The result of its method ``get_actor_metadata``; None if it has no such method."""


class ActorGroupMethod:
    """A method of all actors of a group: ``group.method.remote(...)``."""

    def __init__(self, actors: Sequence[ActorWrapper], name: str) -> None:
        self._actors = actors
        self._name = name

    def remote(self, *args: object, **kwargs: object) -> list[Any]:
        """Call the method of every actor, and return the references in the order of the actors."""
        return [getattr(one.actor, self._name).remote(*args, **kwargs) for one in self._actors]

    def __call__(self, *args: object, **kwargs: object) -> object:
        raise TypeError(
            f"Methods of a group cannot be called directly. Instead of group.{self._name}(...) write "
            f"group.{self._name}.remote(...)."
        )


class ActorGroup:
    """Actors of one class, built with the same arguments. A call on the group is a call on each actor.

    Args:
        actor_cls: The class; not a remote one.
        num_actors: The number of actors.
        num_cpus_per_actor: How many CPUs each actor holds.
        num_gpus_per_actor: How many GPUs each actor holds.
        resources_per_actor: Other resources that each actor holds.
        init_args: Arguments for the constructor.
        init_kwargs: Arguments for the constructor, by name.

    Raises:
        ValueError: `num_actors` is not above 0, or an amount is impossible.

    Example:
        >>> import hocket
        >>> from hocket.util.actor_group import ActorGroup
        >>> class Greeter:
        ...     def __init__(self, word):
        ...         self.word = word
        ...     def greet(self, name):
        ...         return f"{self.word} {name}"
        >>> group = ActorGroup(Greeter, num_actors=2, init_args=("hello",))
        >>> hocket.get(group.greet.remote("you"))
        ['hello you', 'hello you']
        >>> group.shutdown()
    """

    def __init__(
        self,
        actor_cls: type,
        num_actors: int = 1,
        num_cpus_per_actor: float = 1,
        num_gpus_per_actor: float = 0,
        resources_per_actor: Mapping[str, float] | None = None,
        init_args: Sequence[object] | None = None,
        init_kwargs: Mapping[str, object] | None = None,
    ) -> None:
        if num_actors <= 0:
            raise ValueError(f"num_actors must be greater than 0, but received {num_actors!r}. Write num_actors=1.")
        self.num_actors = num_actors
        self.actors: list[ActorWrapper] = []
        self._args = tuple(init_args or ())
        self._kwargs = dict(init_kwargs or {})
        self._remote_cls: actor.ActorClass = api.remote(
            num_cpus=num_cpus_per_actor, num_gpus=num_gpus_per_actor, resources=dict(resources_per_actor or {})
        )(actor_cls)
        self.start()

    def start(self) -> None:
        """Build the actors again after `shutdown`.

        Raises:
            RuntimeError: The actors exist already.
        """
        if self.actors:
            raise RuntimeError("The actors have already been started. Call shutdown() first to start them again.")
        self.add_actors(self.num_actors)

    def shutdown(self, patience_s: float = 5) -> None:
        """End the actors.

        Args:
            patience_s: How many seconds they may spend on their pending calls; 0 or less kills them at once.
        """
        ended: list[contract.AnyRef] = (
            [one.actor.__ray_terminate__.remote() for one in self.actors] if patience_s > 0 else []
        )
        late = api.wait(ended, num_returns=len(ended), timeout=patience_s)[1] if ended else []
        if late or patience_s <= 0:
            for one in self.actors:
                api.kill(one.actor)
        self.actors = []

    def add_actors(self, num_actors: int) -> None:
        """Build further actors."""
        added = [self._remote_cls.remote(*self._args, **self._kwargs) for _ in range(num_actors)]
        tells = "get_actor_metadata" in dir(added[0]) if added else False
        told = api.get([one.get_actor_metadata.remote() for one in added]) if tells else [None] * len(added)
        self.actors += [ActorWrapper(one, metadata) for one, metadata in zip(added, told, strict=True)]

    def remove_actors(self, actor_indexes: Sequence[int]) -> None:
        """Remove actors from the group. They end when no other handle to them is left."""
        gone = set(actor_indexes)
        self.actors = [one for index, one in enumerate(self.actors) if index not in gone]

    @property
    def actor_metadata(self) -> list[Any]:
        """The metadata of each actor, from its ``get_actor_metadata``."""
        return [one.metadata for one in self.actors]

    def __getattr__(self, name: str) -> ActorGroupMethod:
        if name.startswith("__") or "actors" not in self.__dict__:
            raise AttributeError(name)
        if not self.actors:
            raise RuntimeError("This ActorGroup has been shut down. Call start() to build its actors again.")
        return ActorGroupMethod(self.actors, name)

    def __len__(self) -> int:
        return len(self.actors)

    def __getitem__(self, index: int) -> ActorWrapper:
        return self.actors[index]
