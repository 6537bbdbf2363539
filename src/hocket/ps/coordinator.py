"""The coordinator: schedules functions on workers. The names are those of TensorFlow's ``ClusterCoordinator``."""

from __future__ import annotations

import itertools
import os
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn, final

from hocket.core import actor, api, session
from hocket.ps import base_strategy, checks, errors, strategy
from hocket.ps.access import closure_context, links
from hocket.ps.executor import closures, scheduler, streams, worker, workers
from hocket.ps.stores import gate
from hocket.ps.variables import foreign, handles

MAX_QUEUED: Final = 256 * 1024
"""Number of closures that may wait in the queue before `Coordinator.schedule` waits. TensorFlow's number."""

_NEEDED: Final = ("hocket.ps.executor.worker", "hocket.ps.variables.variable", "hocket.ps.variables.embedding")
"""Modules that closures refer to. Workers have them imported from the start."""


_SERVED: Final = (streams.PerWorker, handles.Handle, base_strategy.BaseStrategy)
"""Classes of values that differ in each call. In a graph they would be constants."""


@final
class Coordinator:
    """A runner of functions on a strategy's workers. A strategy has one coordinator; making it again returns the same.

    Args:
        strategy: The strategy.
        max_queued: The number of closures that may wait in the queue before `schedule` waits.
        num_cpus: The CPUs that each worker holds. Default: none, because workers wait for each other's pushes.
        resources: Other resources that each worker holds.
        modules: Modules that the functions import, such as ``"torch"``. Where workers are forked, each module is
            imported once, and a replacement worker has it at once.
        watchdog_s: If no closure ends for this many seconds while some run, the stacks of this process and of the
            workers are written to stderr, once; the closures go on. Default: never.

    Raises:
        TypeError: `strategy` is no `ParameterServerStrategy`.
        ValueError: A number is out of range, or the strategy has a coordinator with other settings.

    Example:
        >>> from hocket import ps
        >>> strategy = ps.ParameterServerStrategy({"worker": 1, "server": 1})
        >>> with strategy.scope():
        ...     counter = ps.Variable(0)
        >>> def add(items):
        ...     return counter.assign_add(next(items)).numpy()
        >>> coordinator = ps.Coordinator(strategy)
        >>> items = iter(coordinator.create_per_worker_dataset([1, 2, 3, 4, 5]))
        >>> results = [coordinator.schedule(add, args=(items,)) for _ in range(5)]
        >>> coordinator.join(), counter.numpy()
        (5, array(15))
        >>> strategy.close()
    """

    def __new__(cls, strategy: strategy.ParameterServerStrategy, **settings: object) -> Coordinator:
        _check(strategy)
        known = _known.get(strategy)
        found = known() if known is not None else None
        if found is not None and settings:
            raise ValueError(
                f"This strategy already has a coordinator, so {sorted(settings)} cannot be set any more. Close it "
                "first: coordinator.close()."
            )
        return found if found is not None else super().__new__(cls)

    def __init__(
        self,
        strategy: strategy.ParameterServerStrategy,
        *,
        max_queued: int = MAX_QUEUED,
        num_cpus: float = 0,
        resources: Mapping[str, float] | None = None,
        modules: Sequence[str] = (),
        watchdog_s: float | None = None,
    ) -> None:
        if hasattr(self, "_scheduler"):
            return
        checks.require_count("max_queued", max_queued, f"Leave it out for {MAX_QUEUED:,} closures.")
        workers.check_watchdog(watchdog_s)
        self.strategy: Final = strategy
        session.get_engine().tasks.expect_work([*_NEEDED, *modules])
        self._link = links.open_link(strategy.address)
        self._scheduler = scheduler.ClosureScheduler(max_queued)
        first_sequence = next(_generations.setdefault(strategy, itertools.count())) * _SEQUENCES
        options = {"num_cpus": num_cpus, "resources": dict(resources or {})}
        settings = worker.Settings(options, first_sequence, is_watched=watchdog_s is not None)
        self._workers = workers.Workers(self._scheduler, self._link, settings)
        self._functions = _Functions()
        self._joined = 0
        self._end = weakref.finalize(self, self._workers.close)
        strategy.on_close(self._end)
        session.at_shutdown(self._end)
        try:
            for _ in range(strategy.cluster.num_workers):
                self._workers.add()
        except BaseException:
            self._end()
            raise
        if watchdog_s is not None:
            workers.start_watchdog(self._workers, watchdog_s)
        _known[strategy] = weakref.ref(self)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "A Coordinator stays in the process that made it, and a closure cannot use it. Pass the closure values as "
            "arguments, and let it return what to schedule next."
        )

    # -- closures --

    def schedule(
        self, fn: Callable[..., object], args: Sequence[object] = (), kwargs: Mapping[str, object] | None = None
    ) -> closures.RemoteValue:
        """Run a function on a worker; return at once.

        Args:
            fn: Any function. Its arguments and globals may hold variables, the strategy and per-worker iterators.
            args: The positional arguments. The function waits for remote values of other closures among them.
            kwargs: The keyword arguments, under the same rules.

        Returns:
            A remote value: the function's result in the future.

        Raises:
            TypeError: `fn` cannot be called, or refers to a value that would be copied to each worker, or would be a
                constant in the graph of a ``tf.function``.
            ClosureFailures: Closures have failed before.
        """
        _refuse_in_closure("schedule")
        named = _read_keywords(args, kwargs)
        _check_call(fn, args, named)
        self._scheduler.check_open()
        given = tuple(args)
        function = self._functions.learn(fn)
        drawn = frozenset(one.number for one in (*function.inputs, *_find_inputs((given, named))))
        return self._scheduler.schedule(function, given, named, drawn)

    def join(self, timeout: float | None = None) -> int:
        """Wait until all closures scheduled so far have ended.

        Args:
            timeout: The seconds to wait at most. Default: no limit.

        Returns:
            The number of closures that ran since the last join, without closures for which no worker had data.

        Raises:
            ClosureFailures: Closures failed; the group holds all errors. No closure runs now, and new ones may follow.
            GetTimeoutError: Closures are still running when the time-out ends.
        """
        _refuse_in_closure("join")
        if not self._scheduler.join(timeout):
            raise errors.JoinTimeoutError(
                f"Closures are still running after {timeout} s: {self.statistics()}. They go on; call join() again."
            )
        self._link.flush()
        before, self._joined = self._joined, self._scheduler.finished
        return self._joined - before

    def done(self) -> bool:
        """Return whether all closures have ended, without waiting.

        Raises:
            ClosureFailures: Closures failed, and none is running any more.
        """
        return self._scheduler.is_done()

    def fetch(self, structure: object) -> Any:
        """Wait for remote values, also in nested lists, tuples and dicts; return the structure with their results.

        Other values pass through.

        Raises:
            Exception: The error that a closure raised.
        """
        return closures.map_instances(structure, closures.RemoteValue, lambda value: value.fetch())

    # -- per-worker datasets and values --

    def create_per_worker_dataset(self, dataset: Callable[..., object] | Sequence[object]) -> streams.PerWorkerDataset:
        """Make a dataset of which each worker reads a part.

        Args:
            dataset: A function that returns an iterable, called in each worker (with an `InputContext`, if it takes an
                argument); or a sequence (with ``len`` and ``[]``), whose items are dealt: each item goes once, to a
                free worker.

        Raises:
            TypeError: The dataset is neither.
        """
        self._scheduler.check_open()
        return _build_dataset(self._scheduler, dataset, self.strategy.address.servers[0].handle)

    def per_worker(self, fn: Callable[[], object]) -> streams.PerWorkerValue:
        """Make a value in each worker.

        Args:
            fn: Makes the value; called once in each worker, and again in a worker that replaces a dead one.

        Returns:
            A placeholder for the value, to be passed to closures.

        Raises:
            TypeError: `fn` cannot be called.
        """
        if not callable(fn):
            raise TypeError(
                f"Coordinator.per_worker takes a function that makes the value, but received {fn!r}. Write lambda: "
                f"{fn!r}."
            )
        self._scheduler.check_open()
        return streams.PerWorkerValue(*self._scheduler.inputs.add(api.put(fn)))

    def read_all(self, value: streams.PerWorkerValue) -> list[Any]:
        """Return each worker's part of a per-worker value, in the order of workers; missing parts are made first.

        Raises:
            Exception: The error raised while a part was made.
        """
        self._scheduler.check_open()
        function = self._functions.learn(_identity)
        return [one.fetch() for one in self._scheduler.ask_all(function, (value,))]

    # -- checkpoints --

    def save(self, path: str | os.PathLike[str], extra: Mapping[str, object] | None = None) -> str:
        """Wait for all closures; write a checkpoint of all variables and of each dataset's position; return its path.

        To resume, a program makes the same variables and the same coordinator, calls `restore`, and then ``iter`` of
        its datasets in the same order. Together, the two runs draw each item once. For a dealt sequence this holds with
        another number of workers, too.

        Args:
            path: A directory that does not exist, or a checkpoint, which is replaced.
            extra: Further data to save, as JSON allows.

        Raises:
            ClosureFailures: Closures failed. Nothing is written.
        """
        self.join()
        return self.strategy.save(path, {"coordinator": self._scheduler.describe(), "extra": dict(extra or {})})

    def restore(self, path: str | os.PathLike[str], *, strict: bool = True) -> dict[str, Any]:
        """Resume from a checkpoint of `save`; return its `extra`. Call it before any dataset is iterated.

        Args:
            path: The checkpoint.
            strict: See `ParameterServerStrategy.restore`.

        Raises:
            RuntimeError: A dataset is being iterated already.
            CheckpointMismatchError: A variable does not fit; or ``strategy.save`` wrote the checkpoint, without
                datasets.
        """
        if self._scheduler.inputs.has_begun:
            raise RuntimeError(
                "restore was called after iter(dataset), and a dataset cannot be moved once it has begun. Call "
                "restore first."
            )
        kept = self.strategy.restore(path, strict=strict)
        if "coordinator" not in kept:
            raise errors.CheckpointMismatchError(
                f"{path} was written by strategy.save, and has no positions of datasets. Use strategy.restore(path), "
                "or write checkpoints with coordinator.save."
            )
        self._scheduler.restore(kept["coordinator"])
        self._joined = self._scheduler.finished
        extra: dict[str, Any] = kept["extra"]
        return extra

    # -- workers --

    @property
    def num_workers(self) -> int:
        """Number of workers now."""
        return len(self._scheduler.workers)

    def add_workers(self, count: int = 1) -> list[int]:
        """Start more workers; return their indices. They take closures at once.

        Raises:
            ValueError: `count` is not positive.
        """
        checks.require_count("count", count, "Write 1 for one more worker.")
        most = gate.MAX_WORKERS - 1  # the last number holds the tickets of synchronous steps
        if self._scheduler.num_workers + count > most:
            raise ValueError(
                f"A strategy can have {most} workers in all, and has had {self._scheduler.num_workers}, but received "
                f"count={count}. Start fewer."
            )
        return [self._workers.add() for _ in range(count)]

    def remove_worker(self, index: int) -> None:
        """End a worker, after it has finished its closures.

        Raises:
            ValueError: There is no such worker, or it is the last.
        """
        self._workers.remove(index)

    def get_worker_pids(self) -> dict[int, int]:
        """Return the process ids of the workers, by index.

        A dead worker stays in the result until the next closure comes to it and replaces it.
        """
        return {index: one.describe().pid for index, one in sorted(self._workers.dispatchers.items())}

    def statistics(self) -> dict[str, int | float]:
        """Return counts: closures queued, in flight, finished and without data, seconds that they ran, and workers
        replaced. The names follow TensorFlow's metrics."""
        return self._scheduler.statistics()

    def close(self) -> None:
        """End the workers. Closures that have not ended are cancelled."""
        if _known.get(self.strategy, lambda: None)() is self:
            del _known[self.strategy]
        self._end()


_SEQUENCES: Final = 1 << 40
"""Number of closures that a worker can run for one coordinator. The numbers of a strategy's next coordinator follow
these, so no push has the ticket of an older push."""

_generations: weakref.WeakKeyDictionary[strategy.ParameterServerStrategy, itertools.count[int]] = (
    weakref.WeakKeyDictionary()
)

_known: weakref.WeakKeyDictionary[strategy.ParameterServerStrategy, weakref.ref[Coordinator]] = (
    weakref.WeakKeyDictionary()
)


def _check(given: object) -> None:
    if not isinstance(given, strategy.ParameterServerStrategy):
        raise TypeError(
            f"Coordinator takes a ParameterServerStrategy, but received {type(given).__name__}. Write "
            "ps.Coordinator(ps.ParameterServerStrategy({'worker': 2, 'server': 1}))."
        )


def _build_dataset(
    queue: scheduler.ClosureScheduler, dataset: Callable[..., object] | Sequence[object], dealer: actor.ActorHandle
) -> streams.PerWorkerDataset:
    """Return the per-worker dataset of a function or a sequence; the server `dealer` deals a sequence's items."""
    if callable(dataset):
        made = api.put(streams.FromFunction(dataset))
        return streams.PerWorkerDataset(lambda: queue.begin_calls(made))
    if hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__") and not isinstance(dataset, Mapping):
        items, count = api.put(dataset), len(dataset)
        return streams.PerWorkerDataset(lambda: queue.inputs.begin_deal(items, count, dealer))
    raise TypeError(
        "A per-worker dataset must be a function that returns something to iterate over, or a sequence, but received "
        f"{type(dataset).__name__}. An iterator cannot be shared; write lambda context: ..., which each worker calls."
    )


def _refuse_in_closure(method: str) -> None:
    if closure_context.get_optional_context() is not None:
        raise RuntimeError(
            f"Coordinator.{method} was called in a closure, which would wait for itself. Call it in the coordinator's "
            "process: let the closure return what to do next."
        )


def _identity(value: object) -> object:
    return value


@final
class _Functions:
    """The functions that a coordinator's closures call, each with a number."""

    def __init__(self) -> None:
        self._known: weakref.WeakKeyDictionary[Callable[..., object], closures.Function] = weakref.WeakKeyDictionary()
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._known)

    def learn(self, fn: Callable[..., object]) -> closures.Function:
        """Return the record of a function for workers: the same record for the same function.

        A callable that is not a plain function may have changed, so each call pickles it again.

        Raises:
            TypeError: The function refers to a value that would be copied to each worker.
        """
        is_plain = isinstance(fn, types.FunctionType)
        function = self._known.get(fn) if is_plain else None
        if function is None:
            foreign.refuse_captured(fn)  # checked once: workers keep the pickled function
            with streams.collected() as inputs:
                ref = api.put(fn)
            # The pickler finds no inputs in a function pickled by reference, so look at the names that it uses.
            inputs += _find_inputs([value for _, value in foreign.list_captured(fn)]) if is_plain else []
            name = getattr(fn, "__qualname__", repr(fn))
            function = closures.Function(next(self._numbers), name, ref, tuple(inputs))
            if is_plain:
                self._known[fn] = function
        return function


def _find_inputs(structure: object, kinds: object = streams.PerWorker) -> list[object]:
    """Return the per-worker iterators and values, or instances of other classes, in nested lists, tuples and dicts."""
    found: list[Any] = []
    closures.map_instances(structure, kinds, found.append)
    return found


def _read_keywords(args: object, kwargs: object) -> dict[str, object]:
    """Return a call's keyword arguments as a dict."""
    if kwargs is not None and not isinstance(kwargs, Mapping):
        given = list(args) if isinstance(args, Sequence) and not isinstance(args, str) else [args]
        raise TypeError(
            "Coordinator.schedule takes a function's arguments as a tuple, and its keywords as a dict, but received "
            f"{kwargs!r} as keywords. Write args=({', '.join(map(repr, [*given, kwargs]))})."
        )
    return dict(kwargs or {})


def _check_call(fn: object, args: object, kwargs: Mapping[str, object]) -> None:
    """Refuse a call that cannot be made, or whose values would be copies in workers or constants in a graph."""
    if not callable(fn):
        raise TypeError(f"Coordinator.schedule takes a function, and its arguments in args=(...), but received {fn!r}.")
    if isinstance(args, str) or not isinstance(args, Sequence):
        raise TypeError(f"args must be a tuple of arguments, but received {args!r}. Write args=({args!r},).")
    foreign.refuse_arguments(fn, args, kwargs)
    if foreign.is_graph(fn):
        for name, value in foreign.list_taken(fn, args, kwargs):
            if _find_inputs(value, _SERVED):
                foreign.refuse_graph(fn, name)
