"""How a framework connects the ranks of a group."""

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
"""The key of a group's `Backend` in `WorkerGroup.notes`."""


@final
class Workers:
    """The ranks of a group, with the interface of Ray's worker group. The methods of a `Backend` take it.

    Args:
        group: The ranks.
    """

    def __init__(self, group: worker_group.WorkerGroup) -> None:
        self._group = group

    def __len__(self) -> int:
        return len(self._group)

    @property
    def num_workers(self) -> int:
        """The number of ranks."""
        return len(self._group)

    def execute(self, func: Callable[..., object], *args: object, **kwargs: object) -> list[Any]:
        """Call a function in all ranks at once, and return its values by rank.

        Raises:
            WorkerGroupError: The function raised an error in a rank, or a rank died.
        """
        return self._group.execute(functools.partial(func, *args, **kwargs), [()] * len(self))

    def execute_async(self, func: Callable[..., object], *args: object, **kwargs: object) -> list[worker_group.Ref]:
        """Call a function in all ranks, and return references to its values by rank."""
        if self._group.shares_process:  # the ranks may meet in the function
            return [api.put(value) for value in self.execute(func, *args, **kwargs)]
        return [self.execute_single_async(rank, func, *args, **kwargs) for rank in range(len(self))]

    def execute_single(self, worker_index: int, func: Callable[..., object], *args: object, **kwargs: object) -> Any:
        """Call a function in one rank, and return its value.

        Raises:
            WorkerGroupError: The function raised an error, or the rank died.
        """
        return self._group.call(worker_index, functools.partial(func, *args, **kwargs))

    def execute_single_async(
        self, worker_index: int, func: Callable[..., object], *args: object, **kwargs: object
    ) -> worker_group.Ref:
        """Call a function in one rank, and return a reference to its value."""
        if self._group.shares_process:
            return api.put(self.execute_single(worker_index, func, *args, **kwargs))
        handle = self._group.actors[worker_index]
        ref: worker_group.Ref = handle.execute.remote(functools.partial(func, *args, **kwargs))
        return ref


class Backend:
    """The base of a program's own setup of communication, as in Ray. `BackendConfig.backend_cls` names the class.

    Each method is called in the process that called `fit`, with the ranks and the configuration. The methods of this
    base class do nothing.

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
        """Called after `on_start`, before any rank runs the training function."""

    def on_shutdown(self, worker_group: Workers, backend_config: BackendConfig) -> None:
        """Called when the training function has returned in all ranks. After a failure the ranks are killed instead."""


class BackendConfig:
    """The settings and the setup of a framework's communication in the ranks of a group.

    A subclass overrides `on_start` and `on_shutdown`. Or it names a `Backend` in `backend_cls`, as in Ray; then the
    methods here call those of the `Backend`. The controller calls the methods in the process that called `fit`, once
    for each start of the group. They reach the ranks with `WorkerGroup.execute`. An error in a method counts as a
    failure of the group. One instance may serve several runs, so a group's state belongs in `WorkerGroup.resources`,
    not in the instance. The training function itself, in the rank, does everything else that a framework needs:
    device, sampler, wrapping of the model.
    """

    @property
    def backend_cls(self) -> type[Backend]:
        """The class with the methods that `on_start` and `on_shutdown` call. Default: a class that does nothing."""
        return Backend

    def list_modules(self, function: Callable[..., object]) -> Sequence[str]:
        """Return modules that the ranks will need for a training function, and that are safe to import before a fork.

        They are loaded once on a machine, not once in each rank. Default: Hocket's own modules for ranks.
        """
        return tuple(f"hocket.train.{name}" for name in ("rank.rank_actor", "rank.context", "strategies.hosting"))

    def list_roles(self, scaling: configs.ScalingConfig) -> Sequence[roles.Role]:
        """Return the role of each rank, the reporting ranks first. Their number is the size of the group.

        Default: no roles; all ranks are alike.
        """
        return ()

    def list_blind_ranks(self, num_workers: int) -> Sequence[int]:
        """Return the ranks with framework collectives that do not notice the end of another rank.

        The driver then reports ranks that go on after one of them has ended. Default: none."""
        return ()

    @contextlib.contextmanager
    def share_process(self) -> Iterator[Sequence[turns.Local]]:
        """Prepare the framework for ranks that are threads of this process and take turns, on the in-process engine.

        Yields the framework's module state that each rank must have for itself. Default: none.
        """
        yield ()

    def check_work(self, work: object) -> None:
        """Check the training function and its arguments before anything starts; raise if the ranks could not use them.

        Default: no check."""

    def on_start(self, group: worker_group.WorkerGroup) -> None:
        """Called when all ranks live, before any rank runs the training function."""
        backend = group.notes[_BACKEND] = self.backend_cls()
        backend.on_start(Workers(group), self)
        backend.on_training_start(Workers(group), self)

    def on_replace(self, group: worker_group.WorkerGroup, rank: int) -> None:
        """Called when a dead rank has a new process, as its role allows. Default: nothing."""

    def on_shutdown(self, group: worker_group.WorkerGroup) -> None:
        """Called when the training function has returned in all ranks. After a failure the ranks are killed instead."""
        backend: Backend | None = group.notes.pop(_BACKEND, None)
        if backend is not None:
            backend.on_shutdown(Workers(group), self)


@final
class NoBackend(BackendConfig):
    """The setup for training functions that need no communication, or set it up themselves."""
