"""Submission of tasks, actors and calls to Ray."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any, final

import ray

from hocket import exceptions
from hocket._base import texts
from hocket.engine import callers, contract, pickling, rules, unsendable
from hocket.engine.ray import base, errors, kept_arguments, keywords, listing, natives, outside, runner
from hocket.kernel import records

_MOST_PENDING = re.compile(r"more than (\d+) tasks")

MOST_FUNCTIONS = 4096
"""How many functions are kept as Ray's remote functions. A guess; each takes some kilobytes."""


@final
class RayTasks(contract.Tasks):
    """Submits tasks, actors and calls to Ray.

    Args:
        session: The session.
        handles: The handles of this process.
        groups: The placement groups of this process.
        kept: The constructors' arguments of this process's actors.
        home: A function by which a worker of Ray's opens its side of the session, and its arguments.
    """

    def __init__(
        self,
        session: base.Session,
        handles: base.RayHandles,
        groups: base.Groups,
        kept: kept_arguments.KeptArguments,
        home: tuple[Callable[[str, str], None], tuple[str, str]],
    ) -> None:
        self._session, self._handles, self._groups, self._kept, self._home = session, handles, groups, kept, home
        self._functions: dict[tuple[bytes, records.TaskOptions], Any] = {}
        self._codes: dict[bytes, runner.Code] = {}
        #: Ids of actors that end with the session.
        self.own_actors: set[int] = set()

    def list_functions(self) -> list[Any]:
        """Return Ray's remote functions for the submitted functions."""
        return list(self._functions.values())

    def clear(self) -> None:
        """Drop all functions, at the session's end."""
        self._functions.clear()
        self._codes.clear()

    def submit_task(
        self,
        function: contract.RemoteFunction,
        args: tuple[object, ...],
        kwargs: dict[str, Any],
        options: records.TaskOptions,
    ) -> list[contract.AnyRef]:
        self._session.check_open()
        if options.shape.group_id in self._groups.removed:
            return self._submit_lost(options)
        task = self._functions.get((function.id, options)) or self._build_task(function, options)
        native_args, native_kwargs = natives.replace_references(args, kwargs)
        try:
            return self._wrap_returns(task.remote(*native_args, **native_kwargs), options, (*args, *kwargs.values()))
        except Exception as error:
            raise _explain_submission(error, args, kwargs, function.name) from error

    def _submit_lost(self, options: records.TaskOptions) -> list[contract.AnyRef]:
        """Submit a function that raises, instead of a task with a removed placement group: Ray would wait for the
        group."""
        error = exceptions.TaskPlacementGroupRemoved(
            f"Task `{options.name}` cannot run: its placement group was removed. Make a new group."
        )
        given = {"num_cpus": 0, "max_retries": 0, "num_returns": keywords.count_returns(options)}
        found = outside.build_remote(runner.build_failure(error, options), given).remote()
        return self._wrap_returns(found, options, ())

    def _wrap_returns(
        self, found: Any, options: records.TaskOptions, given: tuple[object, ...], actor_id: int | None = None
    ) -> list[contract.AnyRef]:
        if found is None:
            return []
        refs = (
            [self._handles.wrap(native) for native in found] if options.num_returns > 1 else [self._handles.wrap(found)]
        )
        self._session.origins.note(refs, options, given, actor_id)
        return refs

    def _build_task(self, function: contract.RemoteFunction, options: records.TaskOptions) -> Any:
        self._session.check_open()
        _check_returning(options)
        group = self._groups.made.get(options.shape.group_id)
        self._session.room.check(options.shape, group, exceptions.TaskUnschedulableError, f"Task `{options.name}`")
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
            code = self._codes[function.id] = runner.Code(function, buffers, self._home)
        return code

    def create_actor(
        self,
        actor_class: contract.RemoteFunction,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        options: records.ActorOptions,
    ) -> contract.ActorInfo:
        self._session.check_open()
        if options.creation.shape.group_id in self._groups.removed:
            raise exceptions.ActorPlacementGroupRemoved(
                f"Actor `{options.class_name}` cannot be built: its placement group was removed. Make a new group."
            )
        for shape in (options.creation.shape, options.lifetime_shape):
            group = self._groups.made.get(shape.group_id)
            self._session.room.check(shape, group, exceptions.ActorUnschedulableError, f"Actor `{options.class_name}`")
        shell = runner.build_class(self._build_code(actor_class), actor_class.value, options)
        shell.__module__ = getattr(actor_class.value, "__module__", shell.__module__)
        native_args, native_kwargs = natives.replace_references(args, kwargs)
        try:
            if options.max_restarts:
                native_args, native_kwargs = kept_arguments.put_large(native_args, native_kwargs)
            remote = outside.build_remote(shell, keywords.build_actor_keywords(options))
            native = remote.remote(*native_args, **runner.rename_self(native_kwargs))
            ref = self._handles.wrap_known(native)
        except Exception as error:
            if "already taken" in str(error) or isinstance(error, ray.exceptions.ActorAlreadyExistsError):
                raise rules.build_name_error(options.name, options.namespace) from error
            raise _explain_submission(error, args, kwargs, options.class_name) from error
        if options.max_restarts:
            self._kept.keep(native, native_args, native_kwargs)
        if options.name:
            listing.publish_actor(native, options)
        self._session.origins.note_actor(ref._id, options.creation.shape)
        if not options.detached:
            self.own_actors.add(ref._id)
        return contract.ActorInfo(ref=ref, options=options)

    def submit_call(
        self,
        actor: contract.ObjectRef[None],
        method: str,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        options: records.TaskOptions,
    ) -> list[contract.AnyRef]:
        if self._session.is_closed:
            rules.raise_ended(exceptions.SessionClosedError(), options.name)
        _check_returning(options)
        native_args, native_kwargs = natives.replace_references(args, kwargs)
        is_special = options.num_returns != 1 or method == "__ray_call__" or "self" in native_kwargs
        is_ours = is_special and runner.CALL_FUNCTION in dir(actor._native)
        name = runner.CALL_FUNCTION if method == "__ray_call__" and is_ours else method
        if is_ours and options.num_returns != 1:
            native_kwargs = {**native_kwargs, runner.RETURNS: options.num_returns}
        if is_ours:
            native_kwargs = runner.rename_self(native_kwargs)
        given = keywords.build_call_keywords(options)
        try:
            found = outside.call_method(actor._native, name, native_args, native_kwargs, given)
            return self._wrap_returns(found, options, (*args, *kwargs.values()), actor._id)
        except Exception as error:
            raise _explain_submission(error, args, kwargs, options.name) from error

    def cancel(self, ref: contract.AnyRef, *, force: bool, recursive: bool) -> None:
        self._session.check_open()
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
        except TypeError:  # the reference is to a put value or an actor, and there is nothing to stop
            return


def _check_returning(options: records.TaskOptions) -> None:
    if options.num_returns == records.STREAMING and outside.is_outside():
        raise outside.build_refusal(f"Reading the items of the generator `{options.name}` one by one")


def _explain_submission(error: Exception, args: tuple[object, ...], kwargs: dict[str, object], what: str) -> Exception:
    """Return our error for an error that Ray raised at a submission."""
    if isinstance(error, ray.exceptions.PendingCallsLimitExceeded):
        found = _MOST_PENDING.search(str(error))
        most = int(found.group(1)) if found else -1
        return rules.build_pending_error(what.partition(".")[0], most, most)
    if isinstance(error, ray.exceptions.RayError):
        translated = errors.translate(error)
        return translated if isinstance(translated, Exception) else error
    first = get_first(error)
    if isinstance(first, exceptions.HocketError):
        return first
    if all(map(pickling.can_travel, (*args, *kwargs.values()))):
        return error
    texts.drop_own_frames(error)
    return exceptions.SerializationError(unsendable.explain_arguments((args, kwargs), what, first))


def get_first(error: Exception) -> Exception:
    """Return an error's cause, or the error itself without one: Ray's own message shows the whole value."""
    return error.__cause__ if isinstance(error.__cause__, Exception) else error
