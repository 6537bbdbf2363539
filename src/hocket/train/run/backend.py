"""How a framework lets the ranks of a group talk to each other."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

from hocket.collective import turns
from hocket.core import api
from hocket.train import configs
from hocket.train.run import roles, worker_group

_BACKEND = "backend"
"""Under which name a group's `Backend` is kept."""


@final
class Workers:
    """The ranks of a group under the names of Ray's worker group. What a `Backend` is given.

    Args:
        group: The ranks.
    """

    def __init__(self, group: worker_group.WorkerGroup) -> None:
        self._group = group

    def __len__(self) -> int:
        return len(self._group)

    @property
    def num_workers(self) -> int:
        """How many ranks there are."""
        return len(self._group)

    def execute(self, func: Callable[..., object], *args: object, **kwargs: object) -> list[Any]:
        """Call a function in all ranks at once; return what it returns, by rank.

        Raises:
            WorkerGroupError: It raised in a rank, or a rank died.
        """
        return self._group.execute(functools.partial(func, *args, **kwargs), [()] * len(self))

    def execute_async(self, func: Callable[..., object], *args: object, **kwargs: object) -> list[worker_group.Ref]:
        """Call a function in all ranks; return references on what it returns, by rank."""
        if self._group.shares_process:  # the ranks may meet in the function
            return [api.put(value) for value in self.execute(func, *args, **kwargs)]
        return [self.execute_single_async(rank, func, *args, **kwargs) for rank in range(len(self))]

    def execute_single(self, worker_index: int, func: Callable[..., object], *args: object, **kwargs: object) -> Any:
        """Call a function in one rank; return what it returns.

        Raises:
            WorkerGroupError: It raised, or the rank died.
        """
        return self._group.call(worker_index, functools.partial(func, *args, **kwargs))

    def execute_single_async(
        self, worker_index: int, func: Callable[..., object], *args: object, **kwargs: object
    ) -> worker_group.Ref:
        """Call a function in one rank; return a reference on what it returns."""
        if self._group.shares_process:
            return api.put(self.execute_single(worker_index, func, *args, **kwargs))
        handle = self._group.actors[worker_index]
        ref: worker_group.Ref = handle.execute.remote(functools.partial(func, *args, **kwargs))
        return ref


class Backend:
    """Sets up communication as Ray's does: for programs that bring a class of their own, named by
    `BackendConfig.backend_cls`.

    Each method is called in the process that called `fit`, with the ranks and the configuration. Those here do nothing.

    Example:
        >>> import tempfile
        >>> import hocket
        >>> from hocket import train
        >>> from hocket.train.backend import Backend, BackendConfig
        >>> class Greeting(Backend):
        ...     def on_start(self, worker_group, backend_config):
        ...         print(worker_group.execute(str.upper, "hello"))
        >>> class GreetingConfig(BackendConfig):
        ...     @property
        ...     def backend_cls(self):
        ...         return Greeting
        >>> context = hocket.init(engine="inprocess", num_cpus=2)
        >>> trainer = train.DataParallelTrainer(
        ...     lambda: None,
        ...     backend_config=GreetingConfig(),
        ...     scaling_config=train.ScalingConfig(num_workers=2),
        ...     run_config=train.RunConfig(storage_path=tempfile.mkdtemp()),
        ... )
        >>> result = trainer.fit()
        ['HELLO', 'HELLO']
    """

    def on_start(self, worker_group: Workers, backend_config: BackendConfig) -> None:
        """Called when all ranks live."""

    def on_training_start(self, worker_group: Workers, backend_config: BackendConfig) -> None:
        """Called after it, before any rank runs the training function."""

    def on_shutdown(self, worker_group: Workers, backend_config: BackendConfig) -> None:
        """Called when the training function has returned in all ranks; not after a failure, when the ranks are
        killed."""


class BackendConfig:
    """Sets up a framework's communication in the ranks of a group.

    A subclass overrides `on_start` and `on_shutdown`, or, as Ray's, names a `Backend` in `backend_cls`, whose methods
    these call. They are called by the controller, in the process that called `fit`, once for each start of the group.
    They reach the ranks with `WorkerGroup.execute`. An error of theirs counts as a failure of the group. One instance
    may serve several runs, so what belongs to a group is kept in `WorkerGroup.resources`, not in the instance. The
    surface is no larger because everything else that a framework needs (device, sampler, wrapping of the model) is
    called by the training function in the rank.
    """

    @property
    def backend_cls(self) -> type[Backend]:
        """The class whose methods `on_start` and `on_shutdown` call. Default: one that does nothing."""
        return Backend

    def list_modules(self, function: Callable[..., object]) -> Sequence[str]:
        """Return what the ranks will import when they run a training function, and can be imported before their
        processes fork.

        It is then loaded once on a machine, not once in each rank. Default: what ranks import of Hocket.
        """
        return tuple(f"hocket.train.{name}" for name in ("rank.rank_actor", "rank.context", "strategies.hosting"))

    def list_roles(self, scaling: configs.ScalingConfig) -> Sequence[roles.Role]:
        """Return what each rank is, if they are not alike, those that report first: as many as the group then has.

        Default: all are alike.
        """
        return ()

    def list_blind_ranks(self, num_workers: int) -> Sequence[int]:
        """Return the ranks whose framework waits for each other in collectives of its own, and does not notice that one
        has ended: the driver then reports those that go on alone. Default: none."""
        return ()

    @contextlib.contextmanager
    def share_process(self) -> Iterator[Sequence[turns.Local]]:
        """Let several ranks be threads of this process that take turns, for the duration of a block, on the in-process
        engine.

        Yields what the framework keeps in its modules that each rank must have for itself. Default: nothing.
        """
        yield ()

    def check_work(self, work: object) -> None:
        """Called before anything is started, with the training function and its arguments: raises if the ranks could
        not do with it. Default: nothing."""

    def on_start(self, group: worker_group.WorkerGroup) -> None:
        """Called when all ranks live, before any runs the training function."""
        backend = group.notes[_BACKEND] = self.backend_cls()
        backend.on_start(Workers(group), self)
        backend.on_training_start(Workers(group), self)

    def on_replace(self, group: worker_group.WorkerGroup, rank: int) -> None:
        """Called when a rank that had died, and whose role allows it, has a new process. Default: nothing."""

    def on_shutdown(self, group: worker_group.WorkerGroup) -> None:
        """Called when the training function has returned in all ranks; not after a failure, when the ranks are
        killed."""
        backend: Backend | None = group.notes.pop(_BACKEND, None)
        if backend is not None:
            backend.on_shutdown(Workers(group), self)


@final
class NoBackend(BackendConfig):
    """For training functions that need no communication, or set it up themselves."""
