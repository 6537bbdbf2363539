"""The coordinator: schedules functions on workers. The names are those of TensorFlow's ``ClusterCoordinator``."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, final

from hocket.core import api
from hocket.ps import closures, desk, errors, links, strategy, streams

MAX_QUEUED: Final = 256 * 1024
"""How many closures may wait before `Coordinator.schedule` does. TensorFlow's number."""


@final
class Coordinator:
    """Runs functions on a strategy's workers. A strategy has one; made again, it is the same.

    Args:
        strategy: Which.
        max_queued: How many closures may wait before `schedule` waits.
        num_cpus: How many CPUs each worker holds. Workers wait for each other's, so hold none by default.
        resources: What else each worker holds.

    Raises:
        TypeError: It is no strategy.
        ValueError: A number is out of range.

    Example:
        >>> import hocket
        >>> from hocket import ps
        >>> context = hocket.init(engine="inprocess")
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
        >>> hocket.shutdown()
    """

    _desk: desk.Desk

    def __new__(cls, strategy: strategy.ParameterServerStrategy, **settings: Any) -> Coordinator:
        _check(strategy)
        known = _known.get(strategy)
        found = known() if known is not None else None
        if found is not None and settings:
            raise ValueError(
                f"This strategy has a coordinator already; it cannot be given {sorted(settings)} any more. Close it first: coordinator.close()."
            )
        return found if found is not None else super().__new__(cls)

    def __init__(
        self,
        strategy: strategy.ParameterServerStrategy,
        *,
        max_queued: int = MAX_QUEUED,
        num_cpus: float = 0,
        resources: Mapping[str, float] | None = None,
    ) -> None:
        if hasattr(self, "_desk"):
            return
        if max_queued < 1:
            raise ValueError(
                f"max_queued must be 1 or more closures, but received {max_queued!r}. Leave it out for {MAX_QUEUED:,}."
            )
        self.strategy: Final = strategy
        options = {"num_cpus": num_cpus, "resources": dict(resources or {})}
        self._link = links.open_link(strategy.address)
        self._desk = desk.Desk(max_queued, options, self._link.gate, is_synchronous=strategy.address.is_synchronous)
        self._functions: dict[Any, int] = {}
        self._joined = 0
        self._num_sources = 0
        self._end = weakref.finalize(self, self._desk.close)
        strategy.on_close(self._desk.close)
        self._desk.num_workers = strategy.cluster.num_workers
        for index in range(self._desk.num_workers):
            self._desk.lanes[index] = desk.Lane(self._desk, index)
        _known[strategy] = weakref.ref(self)

    # -- closures --

    def schedule(
        self, fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> closures.RemoteValue:
        """Have a worker run a function; return at once.

        Args:
            fn: Any function. It runs in a worker; variables, the strategy and per-worker iterators may be in its arguments, or around it.
            args: What it is given. Remote values of other closures may be among them: it runs when they are there.
            kwargs: The same, by name.

        Returns:
            Its result, which will be there.

        Raises:
            TypeError: It cannot be called.
            ClosureFailures: Closures have failed before.
        """
        if not callable(fn):
            raise TypeError(
                f"Coordinator.schedule takes a function, and its arguments in args=(...), but received {fn!r}."
            )
        number = self._functions.get(fn)
        if number is None:
            number = len(self._functions)
            self._functions[fn] = number
            self._desk.functions.append(api.put(fn))
        given = tuple(args)
        named = dict(kwargs or {})
        name = getattr(fn, "__qualname__", repr(fn))
        return self._desk.schedule(number, name, given, named, _find_streams((fn, given, named)))

    def join(self, timeout: float | None = None) -> int:
        """Wait until all closures that are scheduled now have ended.

        Args:
            timeout: Seconds to wait at most. Default: as long as it takes.

        Returns:
            How many have run since the last join. Closures for which no worker had data are not among them.

        Raises:
            ClosureFailures: Closures failed: all errors in one group. No closure runs any more then, and the next may be scheduled.
            GetTimeoutError: They have not ended by then.
        """
        if not self._desk.join(timeout):
            raise errors.JoinTimeoutError(
                f"Closures are still running after {timeout} s: {self.statistics()}. They go on; call join() again."
            )
        self._link.flush()
        before, self._joined = self._joined, self._desk.finished
        return self._joined - before

    def done(self) -> bool:
        """Tell whether all closures have ended, without waiting.

        Raises:
            ClosureFailures: Closures failed, and none runs any more.
        """
        return self._desk.is_done()

    def fetch(self, structure: Any) -> Any:
        """Wait for remote values, also in nested lists, tuples and dicts, and put their values in their places. Other values pass through.

        Raises:
            Exception: What a closure raised.
        """
        return closures.map_remote(structure, lambda value: value.fetch())

    # -- what workers have of their own --

    def create_per_worker_dataset(self, dataset: Callable[..., Any] | Sequence[Any]) -> streams.PerWorkerDataset:
        """Make a dataset of which each worker reads its part.

        Args:
            dataset: A function that returns something to iterate over, called in each worker with an `InputContext` if it takes an argument; or a sequence (with ``len``
                and ``[]``), whose items are dealt: each to one worker, once, whoever is free.

        Raises:
            TypeError: It is neither.
        """
        if callable(dataset):
            takes = _takes_argument(dataset)
            made: Any = streams.FromFunction(dataset, takes_context=takes)
            return streams.PerWorkerDataset(lambda: self._add_source(made))
        if hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__"):
            return streams.PerWorkerDataset(lambda: self._add_source(self.strategy.make_deal(dataset)))
        raise TypeError(
            f"A per-worker dataset is made of a function that returns something to iterate over, or of a sequence, but received {type(dataset).__name__}. An iterator "
            "cannot be shared; write lambda context: ..., which each worker calls."
        )

    def per_worker(self, fn: Callable[[], Any]) -> streams.PerWorkerValue:
        """Make a value in each worker.

        Args:
            fn: Makes it; called once in each worker, and again in one that replaces a dead one.

        Returns:
            What stands for it in the arguments of closures.

        Raises:
            TypeError: It cannot be called.
        """
        if not callable(fn):
            raise TypeError(
                f"Coordinator.per_worker takes a function that makes the value, but received {fn!r}. Write lambda: {fn!r}."
            )
        return streams.PerWorkerValue(self._add_source(fn))

    def read_all(self, value: streams.PerWorkerValue) -> list[Any]:
        """Return each worker's own of a value, by worker."""
        handles = [lane.handle for _, lane in sorted(self._desk.lanes.items())]
        found: list[Any] = api.get([handle.get_values.remote(value.number) for handle in handles])
        return found

    # -- workers --

    @property
    def num_workers(self) -> int:
        """How many workers there are now."""
        return len(self._desk.lanes)

    def add_workers(self, count: int = 1) -> list[int]:
        """Start more workers; return their indices. They take closures at once.

        Raises:
            ValueError: `count` is not positive.
        """
        if count < 1:
            raise ValueError(f"count must be 1 or more workers, but received {count!r}.")
        first = self._desk.num_workers
        with self._desk.condition:
            self._desk.num_workers += count
            self._link.gate.set_workers(len(self._desk.lanes) + count)
        added = list(range(first, first + count))
        for index in added:
            self._desk.lanes[index] = desk.Lane(self._desk, index)
        return added

    def remove_worker(self, index: int) -> None:
        """End a worker, after it has done what it has.

        Raises:
            ValueError: There is no such worker, or it is the last.
        """
        if index not in self._desk.lanes:
            raise ValueError(f"There is no worker {index}; there are {sorted(self._desk.lanes)}.")
        if len(self._desk.lanes) == 1:
            raise ValueError(
                f"Worker {index} is the last one, and closures need one. Use coordinator.close() to end all."
            )
        self._desk.lanes[index].leave()
        with self._desk.condition:
            del self._desk.lanes[index]
            self._link.gate.set_workers(len(self._desk.lanes))
            self._desk.condition.notify_all()

    def get_worker_pids(self) -> dict[int, int]:
        """Return the workers' processes, by index."""
        lanes = sorted(self._desk.lanes.items())
        pids = api.get([lane.handle.get_pid.remote() for _, lane in lanes])
        return {index: pid for (index, _), pid in zip(lanes, pids, strict=True)}

    def statistics(self) -> dict[str, int]:
        """Return counts: closures queued, in flight, finished, and workers replaced. Names follow TensorFlow's metrics."""
        return self._desk.statistics()

    def close(self) -> None:
        """End the workers. Closures that wait are cancelled."""
        _known.pop(self.strategy, None)
        self._end()

    def _add_source(self, source: Any) -> int:
        number = self._num_sources
        self._num_sources += 1
        self._desk.sources[number] = source
        return number


_known: weakref.WeakKeyDictionary[strategy.ParameterServerStrategy, weakref.ref[Coordinator]] = (
    weakref.WeakKeyDictionary()
)


def _check(given: Any) -> None:
    if not isinstance(given, strategy.ParameterServerStrategy):
        raise TypeError(
            f"Coordinator takes a ParameterServerStrategy, but received {type(given).__name__}. Write ps.Coordinator(ps.ParameterServerStrategy({{'worker': 2, 'server': 1}}))."
        )


def _takes_argument(function: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(
        one.default is one.empty and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD) for one in parameters
    )


def _find_streams(structure: Any) -> frozenset[int]:
    """Return the numbers of per-worker iterators and values in nested lists, tuples and dicts, and in what a function closes over."""
    if isinstance(structure, streams.PerWorkerIterator | streams.PerWorkerValue):
        return frozenset((structure.number,))
    if isinstance(structure, list | tuple):
        return frozenset().union(*(_find_streams(item) for item in structure)) if structure else frozenset()
    if isinstance(structure, dict):
        return _find_streams(list(structure.values()))
    if inspect.isfunction(structure):
        found: list[Any] = [cell.cell_contents for cell in structure.__closure__ or () if _is_filled(cell)]
        found += [structure.__globals__.get(name) for name in structure.__code__.co_names]
        return frozenset().union(
            *(
                _find_streams(one)
                for one in found
                if isinstance(one, streams.PerWorkerIterator | streams.PerWorkerValue)
            )
        )
    return frozenset()


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018 (it raises if it is empty)
    except ValueError:
        return False
    return True
