"""The coordinator: schedules functions on workers. The names are those of TensorFlow's ``ClusterCoordinator``."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import os
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn, final

from hocket.core import api, session
from hocket.ps import (
    checks,
    closure_context,
    closures,
    desk,
    embedding,
    errors,
    foreign,
    gate,
    links,
    memory,
    strategy,
    streams,
    variable,
    watchdog,
)

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
        modules: What the functions import, such as ``"torch"``. Where workers are forked it is imported once, and a worker that replaces another has it at once.
        watchdog_s: If no closure ends for so many seconds while some run, the stacks of this process and of the workers are written to stderr, once; then it
            goes on. Default: never.

    Raises:
        TypeError: It is no strategy.
        ValueError: A number is out of range, or the strategy has a coordinator with other settings.

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
        modules: Sequence[str] = (),
        watchdog_s: float | None = None,
    ) -> None:
        if hasattr(self, "_desk"):
            return
        checks.require_count("max_queued", max_queued, f"Leave it out for {MAX_QUEUED:,} closures.")
        if watchdog_s is not None and not watchdog_s > 0:
            raise ValueError(
                f"watchdog_s must be more than 0 seconds, but received {watchdog_s!r}. Leave it out for no watchdog."
            )
        self.strategy: Final = strategy
        options = {"num_cpus": num_cpus, "resources": dict(resources or {})}
        if modules:
            session.get_engine().expect_work(modules)
        self._link = links.open_link(strategy.address)
        generation = _generations.setdefault(strategy, itertools.count())
        self._desk = desk.Desk(
            max_queued,
            options,
            self._link.gate,
            next(generation) * _SEQUENCES,
            is_synchronous=strategy.address.is_synchronous,
            is_watched=watchdog_s is not None,
        )
        self._functions: weakref.WeakKeyDictionary[Callable[..., Any], closures.Function] = weakref.WeakKeyDictionary()
        self._numbers = itertools.count()
        self._passes: list[int] = []
        """The passes over datasets, in the order of their beginning."""
        self._counts: dict[int, int] = {}
        """How many items each pass over a sequence has."""
        self._restored: list[Any] = []
        """Where the passes of the run before were."""
        self._joined = 0
        self._end = weakref.finalize(self, self._desk.close)
        strategy.on_close(self._end)
        session.at_shutdown(self._end)
        try:
            for _ in range(strategy.cluster.num_workers):
                self._desk.add_lane()
        except BaseException:
            self._end()
            raise
        if watchdog_s is not None:
            watchdog.start(self._desk, watchdog_s)
        _known[strategy] = weakref.ref(self)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "A Coordinator stays in the process that made it. A closure has no use for it: give it what it needs as arguments, and let it return what shall be scheduled next."
        )

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
            TypeError: It cannot be called, or takes along what would be a copy in each worker, or a constant in the graph of a ``tf.function``.
            ClosureFailures: Closures have failed before.
        """
        _refuse_in_closure("schedule")
        if not callable(fn):
            raise TypeError(
                f"Coordinator.schedule takes a function, and its arguments in args=(...), but received {fn!r}."
            )
        if isinstance(args, str) or not isinstance(args, Sequence):
            raise TypeError(f"args must be a tuple of arguments, but received {args!r}. Write args=({args!r},).")
        self._desk.check_open()
        foreign.refuse_arguments(fn, args, kwargs or {})
        if foreign.is_graph(fn):
            _refuse_served(fn, foreign.list_taken(fn, args, kwargs or {}))
        function = self._learn(fn)
        given, named = tuple(args), dict(kwargs or {})
        drawn = frozenset(one.number for one in (*function.inputs, *_find_inputs((given, named))))
        return self._desk.schedule(function, given, named, drawn)

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
        _refuse_in_closure("join")
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
        self._desk.check_open()
        if callable(dataset):
            made = api.put(streams.FromFunction(dataset, takes_context=_takes_argument(dataset)))
            return streams.PerWorkerDataset(lambda: self._call(made))
        if hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__") and not isinstance(dataset, Mapping):
            items, count = api.put(dataset), len(dataset)
            return streams.PerWorkerDataset(lambda: self._deal(items, count))
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
        self._desk.check_open()
        return streams.PerWorkerValue(*self._add_source(api.put(fn)))

    def read_all(self, value: streams.PerWorkerValue) -> list[Any]:
        """Return each worker's own of a value, by worker; made where it is not made yet.

        Raises:
            Exception: What making it has raised.
        """
        self._desk.check_open()
        function = self._learn(_identity)
        asked = [self._desk.ask(lane, function, (value,)) for _, lane in sorted(self._desk.lanes.items())]
        return [one.fetch() for one in asked]

    # -- checkpoints --

    def save(self, path: str | os.PathLike[str], extra: Mapping[str, Any] | None = None) -> str:
        """Wait for all closures; write a checkpoint of all variables, and of where each dataset is. Returns its path.

        A program that begins again makes the same variables and the same coordinator, calls `restore`, and then ``iter`` of its datasets in the same order:
        each item is drawn once, by the two runs together. Of a sequence that is dealt so also with another number of workers.

        Args:
            path: A directory that does not exist, or a checkpoint, which is replaced.
            extra: What else to remember: what JSON can hold.

        Raises:
            ClosureFailures: Closures failed. Nothing is written.
        """
        self.join()
        passes = [self._describe_pass(number) for number in self._passes]
        state = {"finished": self._desk.finished, "passes": passes}
        return self.strategy.save(path, {"coordinator": state, "extra": dict(extra or {})})

    def restore(self, path: str | os.PathLike[str], *, strict: bool = True) -> dict[str, Any]:
        """Go on from what `save` has written; return what it remembers besides. Called before datasets are begun.

        Args:
            path: The checkpoint.
            strict: See `ParameterServerStrategy.restore`.

        Raises:
            RuntimeError: A dataset was begun already.
            CheckpointMismatchError: A variable does not fit; or it was written by ``strategy.save``, which knows no datasets.
        """
        if self._passes:
            raise RuntimeError(
                "restore must come before iter(dataset): a dataset that was begun cannot be moved. Call it first."
            )
        kept = self.strategy.restore(path, strict=strict)
        if "coordinator" not in kept:
            raise errors.CheckpointMismatchError(
                f"{path} was written by strategy.save, and does not know where datasets are. Use strategy.restore(path), or write checkpoints with coordinator.save."
            )
        self._restored = list(kept["coordinator"]["passes"])
        self._desk.finished = self._joined = int(kept["coordinator"]["finished"])
        extra: dict[str, Any] = kept["extra"]
        return extra

    def _describe_pass(self, number: int) -> dict[str, Any] | None:
        """Return where a pass over a dataset is; None if nobody holds it any more."""
        if number not in self._desk.sources:
            return None
        positions = self._desk.get_positions(number)
        _, kept = self._desk.sources[number]
        if kept is None:
            return {"positions": {str(worker): position for worker, position in positions.items()}}
        count = self._counts[number]
        return {"left": streams.Deal(kept.ref, count).list_left(positions), "count": count}

    def _take_restored(self, kind: str) -> Any:
        """Return where the next pass begins; None: at its beginning."""
        if len(self._passes) >= len(self._restored):
            return None
        kept = self._restored[len(self._passes)]
        if kept is not None and kind not in kept:
            raise errors.CheckpointMismatchError(
                f"Dataset {len(self._passes)} was {'a function' if kind == 'left' else 'a sequence'} when the checkpoint was written. Begin the same datasets in the same order."
            )
        return kept

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
        checks.require_count("count", count, "Write 1 for one more worker.")
        if self._desk.num_workers + count > gate.MAX_WORKERS:
            raise ValueError(
                f"A strategy can have {gate.MAX_WORKERS} workers in its time, {self._desk.num_workers} were there, and {count} more were asked for."
            )
        return [self._desk.add_lane() for _ in range(count)]

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
        self._desk.remove_lane(index)

    def get_worker_pids(self) -> dict[int, int]:
        """Return the workers' processes, by index. One that has died is replaced when the next closure comes to it, and named until then."""
        return {index: lane.describe().pid for index, lane in sorted(self._desk.lanes.items())}

    def statistics(self) -> dict[str, int | float]:
        """Return counts: closures queued, in flight, finished and without data, seconds that they ran, and workers replaced. Names follow TensorFlow's metrics."""
        return self._desk.statistics()

    def close(self) -> None:
        """End the workers. Closures that have not ended are cancelled."""
        if _known.get(self.strategy, lambda: None)() is self:
            del _known[self.strategy]
        self._end()

    def _learn(self, fn: Callable[..., Any]) -> closures.Function:
        """Return a function as workers know it: the same for the same function. What has a state is read anew each time."""
        is_plain = isinstance(fn, types.FunctionType)
        function = self._functions.get(fn) if is_plain else None
        if function is None:
            foreign.refuse_captured(fn)  # once: what workers know of a function stays
            with streams.collected() as inputs:
                ref = api.put(fn)
            referred = [*inputs, *_find_referred(fn)]
            function = closures.Function(
                next(self._numbers), getattr(fn, "__qualname__", repr(fn)), ref, tuple(referred)
            )
            if is_plain:
                self._functions[fn] = function
        return function

    def _call(self, source: Any) -> streams.PerWorkerIterator:
        """Begin a pass over what a function returns."""
        restored = self._take_restored("positions")
        number, keeper = self._add_source(source)
        if restored is not None:
            positions = {int(worker): position for worker, position in restored["positions"].items()}
            if set(positions) != set(self._desk.lanes):
                raise errors.CheckpointMismatchError(
                    f"A dataset of a function was read by the workers {sorted(positions)}, and there are {sorted(self._desk.lanes)}. Start as many workers as before, or "
                    "make the dataset of a sequence, which is dealt to any number."
                )
            self._desk.set_positions(number, positions)
        self._passes.append(number)
        return streams.PerWorkerIterator(number, keeper)

    def _deal(self, items: Any, count: int) -> streams.PerWorkerIterator:
        """Begin a pass over a sequence."""
        restored = self._take_restored("left")
        if restored is not None and restored["count"] != count:
            raise errors.CheckpointMismatchError(
                f"A dataset had {restored['count']} items when the checkpoint was written, and has {count}. Use the same."
            )
        kept = memory.create(streams.count_deal_bytes(count), "deal")
        streams.build_deal(kept, count, None if restored is None else restored["left"])
        source = streams.FromSequence(items, count, kept.ref, self.strategy.address.servers[0].handle)
        number, keeper = self._add_source(api.put(source), kept)
        self._counts[number] = count
        self._passes.append(number)
        return streams.PerWorkerIterator(number, keeper)

    def _add_source(self, source: Any, kept: memory.Memory | None = None) -> tuple[int, Any]:
        """Note what makes a dataset or a value; return its number, and what ends it when it goes."""
        number = next(self._numbers)
        self._desk.sources[number] = source, kept
        keeper = _Keeper()
        weakref.finalize(keeper, self._desk.released.append, number).atexit = False
        if kept is not None:
            weakref.finalize(keeper, kept.close).atexit = False
        return number, keeper


class _Keeper:
    """Goes with the last iterator or value that has it."""

    __slots__ = ("__weakref__",)


_SEQUENCES: Final = 1 << 40
"""How many closures a worker can run for one coordinator. A strategy's next coordinator counts on from there, so that no push has the ticket of an older one."""

_generations: weakref.WeakKeyDictionary[strategy.ParameterServerStrategy, itertools.count[int]] = (
    weakref.WeakKeyDictionary()
)

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


def _refuse_in_closure(method: str) -> None:
    if closure_context.get_optional_context() is not None:
        raise RuntimeError(
            f"Coordinator.{method} was called in a closure, which would wait for itself. Schedule from the coordinator's process: return what shall be done next."
        )


def _identity(value: Any) -> Any:
    return value


_Input = streams.PerWorkerIterator | streams.PerWorkerValue


def _find_inputs(structure: Any) -> list[Any]:
    """Return the per-worker iterators and values in nested lists, tuples and dicts."""
    found: list[Any] = []
    closures.map_instances(structure, _Input, found.append)
    return found


_Served = (
    streams.PerWorkerIterator,
    streams.PerWorkerValue,
    variable.BaseVariable,
    embedding.Embedding,
    strategy.BaseStrategy,
)
"""What is another thing in each call, and would be a constant in a graph."""


def _refuse_served(fn: Any, taken: Sequence[tuple[str, Any]]) -> None:
    for name, value in taken:
        found: list[Any] = []
        closures.map_instances(value, _Served, found.append)
        if found:
            foreign.refuse_graph(fn, name)


def _find_referred(fn: Callable[..., Any]) -> list[Any]:
    """Return those that a function refers to by name, as pickling it by reference shows none."""
    if not isinstance(fn, types.FunctionType):
        return []
    found: list[Any] = [fn.__globals__.get(name) for name in fn.__code__.co_names]
    for cell in fn.__closure__ or ():
        with contextlib.suppress(ValueError):  # it is empty
            found.append(cell.cell_contents)
    return _find_inputs(found)
