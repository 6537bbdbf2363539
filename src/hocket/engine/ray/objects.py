"""Objects of the engine on Ray."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

import ray

from hocket import exceptions
from hocket._base import texts
from hocket._base.internals import ray as ray_internals
from hocket.engine import contract, rules, unsendable
from hocket.engine.ray import base, errors, listing, natives, outside, runner, tasks
from hocket.kernel import records

FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 60.0
"""Seconds of a single wait in Ray: the first, and the longest. During a wait, Ray handles no signal but Ctrl-C.
Guesses; the time doubles with each wait, so that a long download is not restarted again and again."""


@final
class RayObjects(contract.Objects):
    """Values in Ray's store.

    Args:
        session: The session.
        handles: The handles of this process.
        groups: The placement groups of this process.
    """

    def __init__(self, session: base.Session, handles: base.RayHandles, groups: base.Groups) -> None:
        self._session, self._handles, self._groups = session, handles, groups

    def put(self, value: object) -> contract.AnyRef:
        self._session.check_open()
        try:
            native = ray.put(value)
        except ray.exceptions.RayError as error:
            failure = errors.translate(error)
        except exceptions.HocketError:
            raise
        except Exception as error:
            texts.drop_own_frames(error)
            raise exceptions.SerializationError(
                unsendable.explain_failure(value, "value", tasks.get_first(error))
            ) from error
        else:
            return self._handles.wrap(native)
        raise failure

    def put_error(self, error: exceptions.TaskError) -> contract.ObjectRef[object]:
        self._session.check_open()
        options = records.TaskOptions(name=error.function_name)
        failing = outside.build_remote(
            runner.build_failure(error.as_instanceof_cause(), options), {"num_cpus": 0, "max_retries": 0}
        )
        return self._handles.wrap(failing.remote())

    def get(self, refs: Sequence[contract.AnyRef], timeout_s: float | None) -> list[Any]:
        self._session.check_open()
        wanted = natives.list_awaitables(refs)
        for part_s in _split_time(timeout_s):
            try:
                return natives.hide_groups(refs, ray.get(wanted, timeout=part_s))
            except ray.exceptions.RayError as error:
                if errors.is_timeout(error):
                    _free_room(part_s)
                    lost = self._find_lost(refs)
                    if not lost:
                        continue
                    failure: BaseException = next(iter(lost.values()))
                else:
                    failure = errors.translate(error, self._session.origins.find(refs, error))
            raise failure
        distinct = list(dict.fromkeys(wanted))
        missing = len(ray.wait(distinct, num_returns=len(distinct), timeout=0, fetch_local=False)[1])
        raise rules.build_timeout_error(missing, len(refs), timeout_s)

    def wait(self, refs: Sequence[contract.AnyRef], num_ready: int, timeout_s: float | None) -> list[bool]:
        self._session.check_open()
        wanted = natives.list_awaitables(refs)
        # Of the objects that are there already, the first ones count; Ray's own wait does not promise that.
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

    def _find_lost(self, refs: Sequence[contract.AnyRef]) -> dict[contract.AnyRef, BaseException]:
        """Return the references whose values Ray will never make, without saying so, each with an error. Their tasks
        wait for a removed placement group, or for a node that was lost."""
        groups = {ref: self._session.origins.find_group(ref) for ref in refs}
        removed = self._groups.removed | listing.list_removed_groups() if any(groups.values()) else set()
        lost = self._session.origins.find_unschedulable(refs)
        for ref, group_id in groups.items():
            if group_id in removed:
                lost[ref] = exceptions.TaskPlacementGroupRemoved(
                    f"{ref!r} cannot be made: the placement group of its task was removed. Keep the group until its "
                    "tasks are done."
                )
        waiting = {natives.get_awaitable(ref): ref for ref in lost}
        if waiting:
            for native in ray.wait([*waiting], num_returns=len(waiting), timeout=0, fetch_local=False)[0]:
                del lost[waiting[native]]
        return lost

    def when_done(self, ref: contract.ObjectRef[object], callback: Callable[[], None]) -> None:
        if not self._session.add_callback(callback):
            callback()
            return

        def call_back(_: object) -> None:
            if not self._session.take_callback(callback):
                return
            if outside.is_outside():  # this thread receives all answers, and a callback may wait for one
                threading.Thread(target=callback, name="hocket-callback", daemon=True).start()
            else:
                callback()

        natives.get_awaitable(ref).future().add_done_callback(call_back)

    def take_item(self, stream: contract.ObjectRef[object], index: int) -> contract.ObjectRef[object]:
        item = self._handles.wrap(natives.Head(stream._native))
        self._session.origins.note_item(item, stream)
        return item

    def is_end(self, item: contract.AnyRef, timeout_s: float | None) -> bool | None:
        head = item._native
        if not isinstance(head, natives.Head):
            return False
        if head.is_end is None:
            try:
                ref = ray_internals.take_item(head.generator, timeout_s)
            except StopIteration:
                head.is_end = True
            else:
                if ref.is_nil():
                    return None
                item._native = ref  # Ray may return another reference: the generator's own, if the generator failed
                return False
        return head.is_end


def _free_room(waited_s: float) -> None:
    """Remove dead actors' placement groups, whose resources others may wait for; not after a short wait."""
    if waited_s >= FIRST_WAIT_S:
        listing.remove_groups()


def _split_time(timeout_s: float | None) -> Iterator[float]:
    """Yield the seconds of each single wait in Ray. Between two, Python handles signals, and the engine looks for lost
    values."""
    part_s, left_s = FIRST_WAIT_S, timeout_s
    while left_s is None or left_s > part_s:
        yield part_s
        if left_s is not None:
            left_s -= part_s
        part_s = min(2 * part_s, LONGEST_WAIT_S)
    yield left_s
