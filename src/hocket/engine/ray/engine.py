"""The engine contract on Ray.

Each method says to Ray what it was asked for, and says in our words what Ray answers. There is one object of this class in the driver, and one
in each of Ray's workers that runs work of ours: both talk to Ray in the same way.

What is ours is small. Handles are Ray's inside (`natives`). Options become keywords once for each remote function (`keywords`). An impossible
request is refused at the call: Ray would wait for a node that might come, and it may where the cluster can grow.
"""

from __future__ import annotations

import atexit
import contextlib
import inspect
import itertools
import operator
import os
import re
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Protocol

import ray

from hocket import exceptions
from hocket.engine import callers, contract, rules, values
from hocket.engine.ray import (
    arrays,
    classes,
    errors,
    keeping,
    keywords,
    listing,
    natives,
    notes,
    outside,
    results,
    runner,
    tables,
)
from hocket.kernel import metrics, records, resources

_MOST_PENDING = re.compile(r"more than (\d+) tasks")

FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 60.0
"""How long Ray is waited for at once: the first time, and at most. While it waits Ray hears no signal but Ctrl-C. Guesses; each part doubles,
so that what takes long to fetch is not begun again and again."""

NEWS_S = 1.0
"""How often a worker writes what it has counted, while a task goes on. A guess."""

MOST_FUNCTIONS = 4096
"""How many functions are kept in the form that Ray submits. A guess; one takes some kilobytes."""


class Connection(Protocol):
    """What the engine needs to know of how it came to its Ray."""

    @property
    def address(self) -> str:
        """Where the cluster is."""

    @property
    def is_attached(self) -> bool:
        """Whether somebody else connected this process to Ray, and will disconnect it."""

    def close(self) -> None:
        """Disconnect."""


class RayEngine(contract.Engine):
    """The engine of ``hocket.init(engine="ray")`` and ``hocket.init(address=...)``.

    Args:
        connection: How this process came to Ray; None in a worker.
        namespace: Where names of actors live.
        session_id: The session's id.
    """

    name = "ray"
    limits: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "death_evidence": "An error about a dead worker has no signal, exit code, memory peak or last lines: Ray keeps them in log files.",
            "interrupted_sleep": "A task that is cancelled while it is inside one long call, such as time.sleep or a C function, goes on until that "
            "returns; use force=True.",
            "constructor_causes": "The error of a call on an actor whose constructor raised has its traceback, but not the exception itself: its cause is "
            "a HocketError with the last line. Ray keeps the text alone.",
            "told_cancellation": "A cancelled call of a plain actor that runs fails at once for its caller, though the actor goes on with it.",
            "exact_deaths": "A dead actor takes along answers that had not been sent, the calls that it had been sent and not started, and the "
            "last items of a generator. Of plain tasks only the one that ran is lost.",
            "background_exit": "exit_actor() in a thread or asyncio task in the background ends the actor with its next call.",
            "idle_deaths": "A worker that dies while it has nothing to do can cost the next task on it a try.",
            "cancel_before_creation": "A call that is cancelled before its actor is built takes those behind it along: Ray waits for it for 30 s, and "
            "then fails them.",
            "immediate_kill": "kill() asks Ray to end an actor: calls that are sent right after it may still be answered.",
            "deadlock_search": "Tasks that wait for each other in a circle wait for ever, or until a time-out.",
            "long_chains": "The error of a task that heads a chain of hundreds of dependent tasks takes long to arrive: Ray writes the text of all "
            "before it into each.",
            "generator_completion": "completed() of a generator that raised has the value None: its last item has the error.",
            "counted_async_generators": "A method that is an asynchronous generator has no num_returns but 'streaming' and 'dynamic'.",
            "owner_deaths": "What a worker put, and the results of tasks that it submitted, are lost if it is killed: it owns them.",
            "forks": "A process that a task forks is a second copy of Ray's worker: it has to end with os._exit() before the task's function ends.",
            "instant_start": "Ray's processes start with the session, which takes seconds.",
            "every_interrupt": "A Ctrl-C in the short moment in which Ray's C++ calls back into Python is lost there; press it again.",
            "plain_output": "What workers print comes with a worker's name and pid in front of each line, up to a second late.",
            "exact_state": "The state API and the timeline tell what Ray's own do: a second or so late, with Ray's names for errors and causes, and "
            "also of what was there before the session.",
            "abandoned_generators": "A generator whose reader is gone goes on to its end, or waits for the reader for ever; cancel it.",
            "unreachable_actors": "Actors that hold their own handles, or each other's, live until they are killed or the session ends.",
            "lent_cpus_of_generators": "A generator that waits for its reader keeps its CPU.",
            "signal_handlers": "SIGTERM ends a worker at once, or after what it runs: its handler is Ray's own, so no code of a task or actor hears of it.",
            "exact_statistics": "statistics() counts the references of this process, and nothing of others.",
            **outside.LIMITS,
        }
    )

    def __init__(self, connection: Connection | None, *, namespace: str, session_id: str) -> None:
        super().__init__()
        self.dropped = deque(maxlen=0)  # Ray counts
        self.connection = connection
        self.is_closable = connection is not None
        self._pid = os.getpid()
        self._namespace = namespace
        self.session_id = session_id
        self._is_closed = False
        self._handles: weakref.WeakValueDictionary[int, contract.ObjectRef[Any]] = weakref.WeakValueDictionary()
        self._functions: dict[tuple[bytes, records.TaskOptions], Any] = {}
        self._codes: dict[bytes, runner.Code] = {}
        self._feasible: set[resources.Shape] = set()
        #: Callbacks of `when_done` that have not been called.
        self._callbacks: set[Callable[[], None]] = set()
        self._callbacks_lock = threading.Lock()
        #: Ids of actors that end with the session.
        self._own_actors: set[int] = set()
        self._kept_arguments = keeping.KeptArguments(listing.list_dead_actors)
        self._groups: dict[int, Any] = {}
        self._rebuilder = _Rebuilder((namespace, session_id))
        #: Placement groups that this process gave back, and the references of tasks that were to run in one.
        self._removed: set[int] = set()
        self._in_groups: weakref.WeakKeyDictionary[contract.ObjectRef[Any], int] = weakref.WeakKeyDictionary()
        #: When this worker last wrote what it had noted.
        self._told_at = time.monotonic()
        arrays.install()
        classes.share_numbers()
        if self.is_closable:
            atexit.register(self.close)  # Ray has registered its own end, which would come before that of the session
        #: Ids of objects that this process held before, by sessions that are over.
        self._earlier: frozenset[bytes | str] = frozenset()
        if connection is None or connection.is_attached:
            self._earlier = frozenset([*listing.list_objects(), *listing.list_living_actors()])

    # --- handles ------------------------------------------------------------------------------------------------------

    def wrap(self, native: Any) -> contract.ObjectRef[Any]:
        """Return our handle for one of Ray's that is new to this process."""
        ref: contract.ObjectRef[Any] = contract.ObjectRef(natives.identify(native), self)
        ref._native = native
        return ref

    def wrap_known(self, native: Any) -> contract.ObjectRef[Any]:
        """Return this process's handle for one of Ray's that came in a message."""
        ref = self.wrap(native)
        return self._handles.setdefault(ref._id, ref)

    def reduce_ref(self, ref: contract.ObjectRef[Any]) -> tuple[Any, ...]:
        if self._is_closed:
            raise contract.build_closed_error(ref)
        self._handles.setdefault(ref._id, ref)
        if contract.encoding.refs is not None:  # into the pickle of a function, which Ray does not look into
            contract.encoding.refs.append(ref)
            return operator.getitem, (contract.REFERENCES, len(contract.encoding.refs) - 1)
        return natives.reduce_native(ref._native, self._rebuilder)

    def format_ref(self, ref: contract.ObjectRef[Any]) -> str:
        return natives.format_id(ref._native)

    def intern(self, object_id: int) -> contract.ObjectRef[Any]:
        known = self._handles.get(object_id)
        if known is None:
            group = self._groups.get(object_id) or listing.find_group(object_id)
            if group is None:
                raise exceptions.ObjectLostError(f"Nothing with the id {object_id:x} is known in this process.")
            known = self.wrap_known(group)
        return known

    def remember(self, ref: contract.ObjectRef[Any]) -> contract.ObjectRef[Any]:
        return self._handles.setdefault(ref._id, ref)

    def adopt(self, object_id: int) -> None:
        raise NotImplementedError("Ray counts its handles itself.")

    # --- work ---------------------------------------------------------------------------------------------------------

    def submit_task(
        self,
        function: contract.RemoteFunction,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: records.TaskOptions,
    ) -> list[contract.ObjectRef[Any]]:
        self._check_open()
        if options.shape.group_id in self._removed:
            return self._submit_lost(options)
        task = self._functions.get((function.id, options)) or self._build_task(function, options)
        native_args, native_kwargs = natives.replace_references(args, kwargs)
        try:
            refs = self._wrap_returns(task.remote(*native_args, **native_kwargs), options.num_returns)
        except Exception as error:
            raise _explain_submission(error, args, kwargs, function.name) from error
        if options.shape.group_id:
            for ref in refs:
                self._in_groups[ref] = options.shape.group_id
        return refs

    def _submit_lost(self, options: records.TaskOptions) -> list[contract.ObjectRef[Any]]:
        """Submit what fails in the place of a task whose placement group is gone: Ray would wait for the group."""
        error = exceptions.TaskPlacementGroupRemoved(
            f"Task `{options.name}` was to run in a placement group that was removed. Make a new group."
        )
        given = {"num_cpus": 0, "max_retries": 0, "num_returns": keywords.count_returns(options)}
        found = outside.build_remote(runner.build_failure(error, options), given).remote()
        return self._wrap_returns(found, options.num_returns)

    def _wrap_returns(self, found: Any, num_returns: int) -> list[contract.ObjectRef[Any]]:
        if found is None:
            return []
        return [self.wrap(native) for native in found] if num_returns > 1 else [self.wrap(found)]

    def _build_task(self, function: contract.RemoteFunction, options: records.TaskOptions) -> Any:
        self._check_open()
        _check_returning(options)
        self._check_feasible(options.shape, exceptions.TaskUnschedulableError, f"Task `{options.name}`")
        if len(self._functions) >= MOST_FUNCTIONS:
            self._functions.pop(next(iter(self._functions)))
        is_generator = inspect.isgeneratorfunction(function.value)
        run = runner.build_function(self._build_code(function), options, is_generator=is_generator)
        run.__name__ = run.__qualname__ = getattr(function.value, "__name__", options.name)
        run.__module__ = callers.name_function(function.value).rpartition(".")[0]
        task = outside.build_remote(run, keywords.build_task_keywords(options))
        self._functions[function.id, options] = task
        return task

    def _build_code(self, function: contract.RemoteFunction) -> runner.Code:
        code = self._codes.get(function.id)
        if code is None:
            buffers = ray.put([bytes(buffer) for buffer in function.buffers]) if function.buffers else None
            home = (open_in_worker, (self._namespace, self.session_id))
            code = self._codes[function.id] = runner.Code(function, buffers, home)
        return code

    def create_actor(
        self,
        actor_class: contract.RemoteFunction,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: records.ActorOptions,
    ) -> contract.ActorInfo:
        self._check_open()
        if options.creation.shape.group_id in self._removed:
            raise exceptions.ActorPlacementGroupRemoved(
                f"Actor `{options.class_name}` was to live in a placement group that was removed. Make a new group."
            )
        for shape in (options.creation.shape, options.lifetime_shape):
            self._check_feasible(shape, exceptions.ActorUnschedulableError, f"Actor `{options.class_name}`")
        shell = runner.build_class(self._build_code(actor_class), actor_class.value, options)
        shell.__module__ = getattr(actor_class.value, "__module__", shell.__module__)
        native_args, native_kwargs = natives.replace_references(args, kwargs)
        try:
            if options.max_restarts:
                native_args, native_kwargs = keeping.put_large(native_args, native_kwargs)
            remote = outside.build_remote(shell, keywords.build_actor_keywords(options))
            native = remote.remote(*native_args, **native_kwargs)
            ref = self.wrap_known(native)
        except Exception as error:
            if "already taken" in str(error) or isinstance(error, ray.exceptions.ActorAlreadyExistsError):
                raise rules.build_name_error(options.name, options.namespace) from error
            raise _explain_submission(error, args, kwargs, options.class_name) from error
        if options.max_restarts:
            self._kept_arguments.keep(native, native_args, native_kwargs)
        if options.name:
            listing.publish_actor(native, options)
        if not options.detached:
            self._own_actors.add(ref._id)
        return contract.ActorInfo(ref=ref, options=options)

    def submit_call(
        self,
        actor: contract.ObjectRef[None],
        method: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: records.TaskOptions,
    ) -> list[contract.ObjectRef[Any]]:
        if self._is_closed:
            rules.raise_ended(exceptions.SessionClosedError(), options.name)
        _check_returning(options)
        native_args, native_kwargs = natives.replace_references(args, kwargs)
        name = runner.CALL_FUNCTION if method == "__ray_call__" else method
        given = keywords.build_call_keywords(options)
        try:
            found = outside.call_method(actor._native, name, native_args, native_kwargs, given)
            return self._wrap_returns(found, options.num_returns)
        except Exception as error:
            raise _explain_submission(error, args, kwargs, options.name) from error

    def find_actor(self, name: str, namespace: str) -> contract.ActorInfo | None:
        self._check_open()
        try:
            native = ray.get_actor(name, namespace=namespace)
        except ValueError:
            return None
        return contract.ActorInfo(ref=self.wrap_known(native), options=listing.look_up_actor(native, name, namespace))

    def list_named_actors(self) -> list[tuple[str, str]]:
        return [(found["namespace"], found["name"]) for found in ray.util.list_named_actors(all_namespaces=True)]

    def describe_actor(self, actor_id: int) -> contract.ActorInfo:
        ref = self._handles.get(actor_id)
        if ref is None and runner.current_options is not None:
            ref = self.wrap_known(ray.get_runtime_context().current_actor)
        if ref is None or ref._id != actor_id:
            raise exceptions.ActorHandleNotFoundError(
                f"Actor {actor_id:032x} is not known in this process. Get a handle with hocket.get_actor(name), or pass one."
            )
        options = runner.current_options or listing.look_up_actor(ref._native, "", self._namespace)
        return contract.ActorInfo(ref=ref, options=options)

    def kill_actor(self, actor: contract.ObjectRef[None], *, no_restart: bool = True) -> None:
        if not self._is_closed:
            ray.kill(actor._native, no_restart=no_restart)
            if no_restart:
                self._kept_arguments.forget(actor._native)

    def request_exit(self) -> None:
        runner.is_exiting = True
        with contextlib.suppress(SystemExit, ray.exceptions.AsyncioActorExit):  # ours follows
            ray.actor.exit_actor()

    def check_pending(self, actor: contract.ObjectRef[None]) -> None:
        """Ray checks it when the call is submitted."""

    def cancel(self, ref: contract.ObjectRef[Any], *, force: bool, recursive: bool) -> None:
        self._check_open()
        native = natives.get_native(ref)
        if isinstance(native, natives.Head):
            native = native.generator
        if force and outside.is_call(native):
            raise ValueError(rules.explain_unforcible("a call of an actor"))
        try:
            ray.cancel(native, force=force, recursive=recursive)
        except ValueError as error:
            if "force=True is not supported" in str(error):
                raise ValueError(rules.explain_unforcible("a call of an actor")) from error
            raise
        except TypeError:  # a put value, or an actor: there is nothing to stop
            return

    # --- values -------------------------------------------------------------------------------------------------------

    def put(self, value: Any) -> contract.ObjectRef[Any]:
        self._check_open()
        try:
            native = ray.put(value)
        except ray.exceptions.RayError as error:
            failure = errors.translate(error)
        except exceptions.HocketError:
            raise
        except Exception as error:
            raise exceptions.SerializationError(values.explain_failure(value, "value", _get_first(error))) from error
        else:
            return self.wrap(native)
        raise failure

    def put_error(self, error: exceptions.TaskError) -> contract.ObjectRef[Any]:
        self._check_open()
        options = records.TaskOptions(name=error.function_name)
        failing = outside.build_remote(
            runner.build_failure(error.as_instanceof_cause(), options), {"num_cpus": 0, "max_retries": 0}
        )
        return self.wrap(failing.remote())

    def get(self, refs: Sequence[contract.ObjectRef[Any]], timeout_s: float | None) -> list[Any]:
        self._check_open()
        wanted = natives.list_awaitables(refs)
        for part_s in _split_time(timeout_s):
            try:
                return natives.hide_groups(refs, ray.get(wanted, timeout=part_s))
            except ray.exceptions.GetTimeoutError:
                lost = self._find_lost(refs)
                if not lost:
                    continue
                failure: BaseException = exceptions.TaskPlacementGroupRemoved(
                    f"What makes {lost[0]!r} was to run in a placement group that was removed. Keep the group until its tasks are done."
                )
            except ray.exceptions.RayError as error:
                failure = errors.translate(error)
            raise failure
        distinct = list(dict.fromkeys(wanted))
        missing = len(ray.wait(distinct, num_returns=len(distinct), timeout=0, fetch_local=False)[1])
        raise rules.build_timeout_error(missing, len(refs), timeout_s)

    def wait(self, refs: Sequence[contract.ObjectRef[Any]], num_ready: int, timeout_s: float | None) -> list[bool]:
        self._check_open()
        wanted = natives.list_awaitables(refs)
        # Those that are there already count in their order, which Ray's own wait does not promise.
        ready = set(ray.wait(wanted, num_returns=len(wanted), timeout=0)[0])
        if len(ready) >= num_ready:
            first = itertools.islice((place for place, native in enumerate(wanted) if native in ready), num_ready)
            chosen = set(first)
            return [place in chosen for place in range(len(wanted))]
        for part_s in _split_time(timeout_s):
            ready = set(ray.wait(wanted, num_returns=num_ready, timeout=part_s)[0])
            if len(ready) >= num_ready:
                break
            lost = [natives.get_awaitable(ref) for ref in self._find_lost(refs)]
            ready.update(lost[: num_ready - len(ready)])
            if len(ready) >= num_ready:
                break
        return [native in ready for native in wanted]

    def _find_lost(self, refs: Sequence[contract.ObjectRef[Any]]) -> list[contract.ObjectRef[Any]]:
        """Return those that Ray will never make, though it does not say so: what waits for a placement group that was removed."""
        groups = {ref: self._in_groups.get(ref, ref._id if natives.is_group(ref._native) else 0) for ref in refs}
        suspects = [ref for ref, group_id in groups.items() if group_id]
        if not suspects:
            return []
        removed = self._removed | listing.list_removed_groups()
        suspects = [ref for ref in suspects if groups[ref] in removed]
        waiting = [natives.get_awaitable(ref) for ref in suspects]
        there = set(ray.wait(waiting, num_returns=len(waiting), timeout=0, fetch_local=False)[0]) if waiting else set()
        return [ref for ref, native in zip(suspects, waiting, strict=True) if native not in there]

    def when_done(self, ref: contract.ObjectRef[Any], callback: Callable[[], None]) -> None:
        with self._callbacks_lock:
            if not self._is_closed:
                self._callbacks.add(callback)
                is_open = True
            else:
                is_open = False
        if not is_open:
            callback()
            return

        def call_back(_: object) -> None:
            with self._callbacks_lock:
                if callback not in self._callbacks:  # the session was closed
                    return
                self._callbacks.discard(callback)
            if outside.is_outside():  # in the thread that hears all answers, and a callback may wait for one
                threading.Thread(target=callback, name="hocket-callback", daemon=True).start()
            else:
                callback()

        natives.get_awaitable(ref).future().add_done_callback(call_back)

    # --- generators ---------------------------------------------------------------------------------------------------

    def take_item(self, stream: contract.ObjectRef[Any], index: int) -> contract.ObjectRef[Any]:
        return self.wrap(natives.Head(stream._native))

    def is_end(self, item: contract.ObjectRef[Any], timeout_s: float | None) -> bool | None:
        head = item._native
        if not isinstance(head, natives.Head):
            return False
        if head.is_end is None:
            try:
                ref = head.generator._next_sync(timeout_s)
            except StopIteration:
                head.is_end = True
            else:
                if ref.is_nil():
                    return None
                item._native = ref  # it may be another one: the generator's own, if that is what failed
                return False
        return head.is_end

    # --- resources ----------------------------------------------------------------------------------------------------

    def reserve(self, bundles: Sequence[resources.Demand], strategy: str, name: str) -> contract.ObjectRef[None]:
        self._check_open()
        listing.check_bundles(bundles, strategy)
        native = ray.util.placement_group([keywords.build_bundle(bundle) for bundle in bundles], strategy, name)
        ref = self.wrap_known(native)
        self._groups[ref._id] = native
        return ref

    def remove_group(self, group_id: int) -> None:
        if not self._is_closed:
            self._groups.pop(group_id, None)
            self._removed.add(group_id)
            ray.util.remove_placement_group(keywords.build_group(group_id))

    def list_groups(self) -> list[dict[str, Any]]:
        return listing.list_groups()

    def list_nodes(self) -> list[dict[str, Any]]:
        return list(ray.nodes())

    def get_total_resources(self) -> dict[str, float]:
        return dict(ray.cluster_resources())

    def get_free_resources(self) -> dict[str, float]:
        return {name: amount for name, amount in ray.available_resources().items() if amount > 0}

    def _check_feasible(
        self, shape: resources.Shape, kind: type[exceptions.InfeasibleResourcesError], what: str
    ) -> None:
        if shape in self._feasible:
            return
        problem = listing.find_obstacle(shape, self._groups.get(shape.group_id), what)
        if problem is not None:
            raise kind(problem)
        self._feasible.add(shape)

    # --- looking, and the end -----------------------------------------------------------------------------------------

    def get_context(self) -> contract.WorkContext:
        actor = runner.current_options
        namespace = actor.namespace if actor is not None and actor.name else self._namespace
        return listing.build_context(self.session_id, namespace)

    def list_errors(self) -> list[exceptions.ErrorRecord]:
        return notes.list_failures(self.session_id)

    def list_records(
        self, kind: str, filters: Sequence[tuple[str, str, Any]] = (), limit: int | None = None
    ) -> list[dict[str, Any]]:
        return outside.ask(tables.list_records, kind, filters, limit, notes.list_failures(self.session_id))

    def record_metrics(self, batch: metrics.Batch) -> None:
        super().record_metrics(batch)
        if self.is_closable:
            return
        runner.has_news = True
        if time.monotonic() - self._told_at > NEWS_S:  # the result may be far
            self.send_news()

    def send_news(self) -> None:
        """Write what this worker has noted; the runner calls it before a result leaves."""
        self._told_at = time.monotonic()
        with self.metrics_lock:
            notes.publish(self.session_id, self.metrics)

    def collect_metrics(self) -> metrics.MetricStore:
        with self.metrics_lock:
            return notes.collect_metrics(self.session_id, self.metrics)

    def statistics(self) -> dict[str, Any]:
        return listing.count(self._earlier | outside.list_functions(self._functions.values()))

    def _check_open(self) -> None:
        if self._is_closed or not ray.is_initialized():  # the user's own ray.shutdown() ends it too
            raise exceptions.SessionClosedError("The session was shut down. Call hocket.init() to open a new one.")

    def close(self) -> None:
        with self._callbacks_lock:
            if (
                self._is_closed or self.connection is None or os.getpid() != self._pid
            ):  # a fork's exit is not the driver's
                return
            self._is_closed = True
            callbacks, self._callbacks = self._callbacks, set()
        atexit.unregister(self.close)
        for callback in callbacks:
            callback()
        arrays.uninstall()
        self._kept_arguments.clear()
        try:
            if ray.is_initialized():  # the user may have called ray.shutdown() before
                if self.connection.is_attached:
                    self._end_own()
                notes.clear(self.session_id)
        finally:
            self._functions.clear()
            self._codes.clear()
            self._groups.clear()
            self.connection.close()

    def _end_own(self) -> None:
        """End what the session started, where Ray goes on."""
        for actor_id in self._own_actors:
            ref = self._handles.get(actor_id)
            if ref is not None:
                ray.kill(ref._native)
        for group in self._groups.values():
            ray.util.remove_placement_group(group)


def _split_time(timeout_s: float | None) -> Iterator[float]:
    """Yield how long to wait for Ray at a time, so that signals are heard and lost things are looked for in between."""
    part_s, left_s = FIRST_WAIT_S, timeout_s
    while left_s is None or left_s > part_s:
        yield part_s
        if left_s is not None:
            left_s -= part_s
        part_s = min(2 * part_s, LONGEST_WAIT_S)
    yield left_s


def _check_returning(options: records.TaskOptions) -> None:
    if options.num_returns == records.STREAMING and outside.is_outside():
        raise outside.build_refusal(f"The items of the generator `{options.name}`, one by one,")


def _explain_submission(error: Exception, args: tuple[Any, ...], kwargs: dict[str, Any], what: str) -> Exception:
    """Return the error to raise for what Ray raised when it was handed work."""
    if isinstance(error, ray.exceptions.PendingCallsLimitExceeded):
        found = _MOST_PENDING.search(str(error))
        most = int(found.group(1)) if found else -1
        return rules.build_pending_error(what.partition(".")[0], most, most)
    if isinstance(error, ray.exceptions.RayError):
        translated = errors.translate(error)
        return translated if isinstance(translated, Exception) else error
    first = _get_first(error)
    if isinstance(first, exceptions.HocketError):
        return first
    if all(map(values.can_travel, (*args, *kwargs.values()))):
        return error
    return exceptions.SerializationError(values.explain_arguments((args, kwargs), what, first))


def _get_first(error: Exception) -> Exception:
    """Return what was wrong at first: Ray's own message shows the whole value."""
    return error.__cause__ if isinstance(error.__cause__, Exception) else error


class _Rebuilder:
    """Makes our handle of Ray's where a message is unpickled; opens the process's side of the session if it must."""

    def __init__(self, home: tuple[str, str]) -> None:
        self._home = home

    def __call__(self, native: Any) -> contract.ObjectRef[Any]:
        engine = contract.get_optional_current_engine()
        if engine is None or not engine.is_closable:
            open_in_worker(*self._home)
            engine = contract.get_current_engine()
        assert isinstance(engine, RayEngine)
        return engine.wrap_known(native)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Rebuilder, (self._home,)


def open_in_worker(namespace: str, session_id: str) -> None:
    """Open this worker's side of a session. A worker of Ray's runs work of one driver only, but that may open one session after another."""
    known = contract.get_optional_current_engine()
    if isinstance(known, RayEngine) and known.session_id == session_id:
        return
    notes.failures.clear()
    ray._private.worker.blocking_get_inside_async_warned = True  # an awaited reference is looked up when it is there
    engine = RayEngine(None, namespace=namespace, session_id=session_id)
    runner.send_news = engine.send_news
    results.install()
    contract.set_current_engine(engine)
