"""Objects: stored in Ray, waited for, opened."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ray

from hocket import exceptions, texts
from hocket.engine import contract, rules, unsendable
from hocket.engine.ray import base, errors, listing, natives, orphans, outside, runner, submission
from hocket.kernel import records, resources

FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 60.0
"""How long Ray is waited for at once: the first time, and at most. While it waits Ray hears no signal but Ctrl-C.
Guesses; each part doubles, so that what takes long to fetch is not begun again and again."""

HOMELESS_SECONDS = 20.0
"""How long no node has room for a task before it fails, after the one that had it was lost. A guess: a node that is
started again takes some seconds to join."""

MOST_SUSPECTS = 5
"""How many tasks are named of which one has failed."""


class ObjectAccess(submission.Submission):
    """Puts and gets."""

    def put(self, value: object) -> contract.AnyRef:
        self._check_open()
        try:
            native = ray.put(value)
        except ray.exceptions.RayError as error:
            failure = errors.translate(error)
        except exceptions.HocketError:
            raise
        except Exception as error:
            texts.drop_own_frames(error)
            raise exceptions.SerializationError(
                unsendable.explain_failure(value, "value", submission.get_first(error))
            ) from error
        else:
            return self.wrap(native)
        raise failure

    def put_error(self, error: exceptions.TaskError) -> contract.ObjectRef[object]:
        self._check_open()
        options = records.TaskOptions(name=error.function_name)
        failing = outside.build_remote(
            runner.build_failure(error.as_instanceof_cause(), options), {"num_cpus": 0, "max_retries": 0}
        )
        return self.wrap(failing.remote())

    def get(self, refs: Sequence[contract.AnyRef], timeout_s: float | None) -> list[Any]:
        self._check_open()
        wanted = natives.list_awaitables(refs)
        for part_s in _split_time(timeout_s):
            try:
                return natives.hide_groups(refs, ray.get(wanted, timeout=part_s))
            except ray.exceptions.GetTimeoutError:
                _free_room(part_s)
                lost = self._find_lost(refs)
                if not lost:
                    continue
                failure: BaseException = next(iter(lost.values()))
            except ray.exceptions.RayError as error:
                failure = errors.translate(error, self._find_origin(refs, error))
            raise failure
        distinct = list(dict.fromkeys(wanted))
        missing = len(ray.wait(distinct, num_returns=len(distinct), timeout=0, fetch_local=False)[1])
        raise rules.build_timeout_error(missing, len(refs), timeout_s)

    def wait(self, refs: Sequence[contract.AnyRef], num_ready: int, timeout_s: float | None) -> list[bool]:
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
            _free_room(part_s)
            lost = [natives.get_awaitable(ref) for ref in self._find_lost(refs)]
            ready.update(lost[: num_ready - len(ready)])
            if len(ready) >= num_ready:
                break
        return [native in ready for native in wanted]

    def _find_lost(self, refs: Sequence[contract.ObjectRef[object]]) -> dict[contract.ObjectRef[object], Exception]:
        """Return what Ray will never make, though it does not say so, with the error that does: what waits for a
        placement group that was removed, or for a node that was lost."""
        known = {ref: self._made.get(ref) for ref in refs}
        groups = {
            ref: made.shape.group_id if made is not None else ref._id if natives.is_group(ref._native) else 0
            for ref, made in known.items()
        }
        removed = self._removed | listing.list_removed_groups() if any(groups.values()) else set()
        homeless = self._find_homeless({made.shape for made in known.values() if made is not None})
        lost: dict[contract.ObjectRef[object], Exception] = {}
        for ref, made in known.items():
            if groups[ref] in removed:
                lost[ref] = exceptions.TaskPlacementGroupRemoved(
                    f"What makes {ref!r} was to run in a placement group that was removed. Keep the group until its "
                    "tasks are done."
                )
            elif made is not None and made.shape in homeless:
                lost[ref] = made.build_unschedulable(homeless[made.shape])
        waiting = {natives.get_awaitable(ref): ref for ref in lost}
        if waiting:
            for native in ray.wait([*waiting], num_returns=len(waiting), timeout=0, fetch_local=False)[0]:
                del lost[waiting[native]]
        return lost

    def _find_homeless(self, shapes: set[resources.Shape]) -> dict[resources.Shape, str]:
        """Return what no node has had room for since so long that none will come, and why."""
        found = {}
        for shape in shapes:
            problem = None if shape.group_id else listing.find_obstacle(shape, None, "")
            if problem is None:
                self._homeless.pop(shape, None)
                continue
            self._feasible.discard(shape)
            since = self._homeless.setdefault(shape, time.monotonic())
            if time.monotonic() - since >= HOMELESS_SECONDS:
                found[shape] = problem.strip()
        return found

    def _find_origin(self, refs: Sequence[contract.AnyRef], error: Exception) -> errors.Origin:
        """Return what was to make the first value that Ray has an error of its own in the place of."""
        is_passed_on = isinstance(error, ray.exceptions.RayTaskError)
        if is_passed_on and not isinstance(error.cause, ray.exceptions.RayError):
            return errors.Origin()
        for ref in refs:
            made = self._made.get(ref)
            if made is None or (len(refs) > 1 and not _has_failed(ref)):
                continue
            found = _list_suspects(made) if made.arguments else []
            if len(found) > 1 or (is_passed_on and not found):
                names = dict.fromkeys(suspect.options.name for suspect in found)
                return errors.Origin(made.options.name, before=tuple(names), is_of_argument=True)
            options = found[0].options if found else made.options
            return errors.Origin(options.name, options.max_retries + 1)
        return errors.Origin()

    def when_done(self, ref: contract.ObjectRef[object], callback: Callable[[], None]) -> None:
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

    def take_item(self, stream: contract.ObjectRef[object], index: int) -> contract.ObjectRef[object]:
        item = self.wrap(natives.Head(stream._native))
        made = self._made.get(stream)
        if made is not None:
            self._made[item] = made
        return item

    def is_end(self, item: contract.AnyRef, timeout_s: float | None) -> bool | None:
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


def _has_failed(ref: contract.AnyRef) -> bool:
    """Tell whether Ray has an error in the place of a value."""
    if not isinstance(ref._native, natives.Head) and not natives.is_object(ref._native):
        return False
    try:
        ray.get(natives.get_awaitable(ref), timeout=0)
    except ray.exceptions.GetTimeoutError:
        return False
    except ray.exceptions.RayError:
        return True
    return False


def _list_suspects(made: base.Made) -> list[base.Made]:
    """Return what may have failed before a task or a call that was not made because of it."""
    found: list[base.Made] = []
    left = [made]
    while left and len(found) < MOST_SUSPECTS:
        for link, argument in left.pop().arguments:
            ref = link()
            if argument is not None and (ref is None or _has_failed(ref)):
                found.append(argument)
                left.append(argument)
    return found


def _free_room(waited_s: float) -> None:
    """Remove what may be in the way of what is waited for; not worth its cost after a glance."""
    if waited_s >= FIRST_WAIT_S:
        orphans.remove_groups()


def _split_time(timeout_s: float | None) -> Iterator[float]:
    """Yield how long to wait for Ray at a time, so that signals are heard and lost things are looked for in between."""
    part_s, left_s = FIRST_WAIT_S, timeout_s
    while left_s is None or left_s > part_s:
        yield part_s
        if left_s is not None:
            left_s -= part_s
        part_s = min(2 * part_s, LONGEST_WAIT_S)
    yield left_s
