"""How a framework lets the ranks of a group talk to each other."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

from hocket.collective import turns
from hocket.train import configs, roles, worker_group


class BackendConfig(abc.ABC):
    """Sets up a framework's communication in the ranks of a group.

    `on_start` and `on_shutdown` are called by the controller, in the process that called `fit`, once for each start of the group. They reach the
    ranks with `WorkerGroup.execute`. An error of theirs counts as a failure of the group. One instance may serve several runs, so
    what belongs to a group is kept in `WorkerGroup.resources`, not in the instance. The surface is no larger because everything
    else that a framework needs (device, sampler, wrapping of the model) is called by the training function in the rank.
    """

    def list_modules(self, function: Callable[..., Any]) -> Sequence[str]:
        """Return what the ranks will import when they run a training function, and can be imported before their processes fork.

        It is then loaded once on a machine, not once in each rank. Default: nothing.
        """
        return ()

    def list_roles(self, scaling: configs.ScalingConfig) -> Sequence[roles.Role]:
        """Return what each rank is, if they are not alike, those that report first: as many as the group then has. Default: all are alike."""
        return ()

    @contextlib.contextmanager
    def share_process(self) -> Iterator[Sequence[turns.Local]]:
        """Let several ranks be threads of this process that take turns, for the duration of a block, on the in-process engine.

        Yields what the framework keeps in its modules that each rank must have for itself. Default: nothing.
        """
        yield ()

    def check_work(self, work: Any) -> None:  # noqa: B027 (there is mostly nothing to do)
        """Called before anything is started, with the training function and its arguments: raises if the ranks could not do with it. Default: nothing."""

    @abc.abstractmethod
    def on_start(self, group: worker_group.WorkerGroup) -> None:
        """Called when all ranks live, before any runs the training function."""

    def on_replace(self, group: worker_group.WorkerGroup, rank: int) -> None:  # noqa: B027 (there is mostly nothing to do)
        """Called when a rank that had died, and whose role allows it, has a new process. Default: nothing."""

    @abc.abstractmethod
    def on_shutdown(self, group: worker_group.WorkerGroup) -> None:
        """Called when the training function has returned in all ranks; not after a failure, when the ranks are killed."""


@final
class NoBackend(BackendConfig):
    """For training functions that need no communication, or set it up themselves."""

    def on_start(self, group: worker_group.WorkerGroup) -> None:
        """Do nothing."""

    def on_shutdown(self, group: worker_group.WorkerGroup) -> None:
        """Do nothing."""
