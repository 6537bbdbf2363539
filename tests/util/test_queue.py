"""Queue: first in first out, for whoever has it."""

from __future__ import annotations

import asyncio
import queue as standard_queue
import threading
from typing import Any

import pytest

import hocket
from hocket.core import api
from hocket.util.queue import Empty, Full, Queue


@hocket.remote(num_cpus=0)
def produce(queue: Queue, items: list[Any]) -> None:
    for item in items:
        queue.put(item)


@hocket.remote(num_cpus=0)
def consume(queue: Queue, count: int) -> list[Any]:
    return [queue.get() for _ in range(count)]


def test_errors_are_those_of_the_standard_queue_too() -> None:
    assert issubclass(Empty, standard_queue.Empty)
    assert issubclass(Full, standard_queue.Full)


def test_first_in_first_out(any_session: hocket.SessionContext) -> None:
    queue = Queue()
    for item in range(20):
        queue.put(item)
    assert [queue.get() for _ in range(10)] == list(range(10))
    assert [queue.get_nowait() for _ in range(10)] == list(range(10, 20))


def test_sizes(any_session: hocket.SessionContext) -> None:
    queue = Queue(maxsize=2)
    assert (len(queue), queue.size(), queue.qsize(), queue.empty(), queue.full()) == (0, 0, 0, True, False)
    queue.put("a")
    assert (len(queue), queue.size(), queue.qsize(), queue.empty(), queue.full()) == (1, 1, 1, False, False)
    queue.put("b")
    assert (len(queue), queue.size(), queue.qsize(), queue.empty(), queue.full()) == (2, 2, 2, False, True)
    assert queue.maxsize == 2
    for maxsize in (0, -1):
        unlimited = Queue(maxsize)
        unlimited.put_nowait_batch(range(100))
        assert not unlimited.full()


def test_nothing_there(any_session: hocket.SessionContext) -> None:
    queue = Queue()
    with pytest.raises(Empty, match="Cannot take 1 items from a queue of 0"):
        queue.get_nowait()
    with pytest.raises(Empty, match="Cannot take 1 items from a queue of 0"):
        queue.get(block=False)
    with pytest.raises(Empty, match=r"The queue was empty for 0.01 s"):
        queue.get(timeout=0.01)
    with pytest.raises(Empty, match="The queue was empty for 0 s"):
        queue.get(timeout=0)


def test_no_room(any_session: hocket.SessionContext) -> None:
    queue = Queue(1)
    queue.put(1)
    with pytest.raises(Full, match="Cannot add 1 items to a queue of 1 items whose maxsize is 1"):
        queue.put_nowait(2)
    with pytest.raises(Full, match="Cannot add 1 items to a queue of 1 items whose maxsize is 1"):
        queue.put(2, block=False)
    with pytest.raises(Full, match=r"The queue was full for 0.01 s"):
        queue.put(2, timeout=0.01)
    assert queue.get() == 1
    queue.put(2, timeout=0)
    assert queue.get(timeout=0) == 2


def test_batches_are_all_or_none(any_session: hocket.SessionContext) -> None:
    queue = Queue(3)
    queue.put_nowait_batch(x for x in (1, 2))
    with pytest.raises(Full, match="Cannot add 2 items to a queue of 2 items whose maxsize is 3"):
        queue.put_nowait_batch([3, 4])
    with pytest.raises(Empty, match="Cannot take 3 items from a queue of 2"):
        queue.get_nowait_batch(3)
    assert queue.get_nowait_batch(0) == []
    assert queue.get_nowait_batch(2) == [1, 2]
    queue.put_nowait_batch([])
    assert queue.empty()


def test_references(any_session: hocket.SessionContext) -> None:
    queue = Queue()
    queue.put(hocket.put("value"))
    assert queue.get() == "value"
    ref = hocket.put("inner")
    queue.put([ref])
    assert hocket.get(queue.get()[0]) == "inner"


def test_coroutines(session: hocket.SessionContext) -> None:
    queue = Queue(1)

    async def work() -> list[Any]:
        await queue.put_async(1)
        with pytest.raises(Full, match=r"The queue was full for 0.01 s"):
            await queue.put_async(2, timeout=0.01)
        with pytest.raises(Full, match="Cannot add 1 items"):
            await queue.put_async(2, block=False)
        found = [await queue.get_async(block=False)]
        with pytest.raises(Empty, match=r"The queue was empty for 0.01 s"):
            await queue.get_async(timeout=0.01)
        with pytest.raises(Empty, match="Cannot take 1 items"):
            await queue.get_async(block=False)
        first, _ = await asyncio.gather(queue.get_async(), queue.put_async(3))
        return [*found, first]

    assert asyncio.run(work()) == [1, 3]


@pytest.mark.needs("parallelism")
def test_shared_by_tasks(session: hocket.SessionContext) -> None:
    queue = Queue(maxsize=5)
    producers = [produce.remote(queue, [(name, item) for item in range(50)]) for name in "ab"]
    consumers = [consume.remote(queue, 50) for _ in range(2)]
    found = [pair for items in hocket.get(consumers) for pair in items]
    hocket.get(producers)
    assert sorted(found) == sorted((name, item) for name in "ab" for item in range(50))
    for items in hocket.get(consumers):
        for name in "ab":
            own = [item for producer, item in items if producer == name]
            assert own == sorted(own)
    assert queue.empty()


@pytest.mark.needs("parallelism")
def test_a_full_queue_holds_a_producer_back(session: hocket.SessionContext) -> None:
    queue = Queue(maxsize=1)
    producer = produce.remote(queue, [1, 2, 3])
    assert queue.get() == 1
    ready, _ = hocket.wait([producer], timeout=0)
    assert ready == []
    assert [queue.get(), queue.get()] == [2, 3]
    hocket.get(producer)


def test_many_can_wait(session: hocket.SessionContext) -> None:
    """More than an asynchronous actor's usual thousand: the call that they wait for must get in."""
    queue = Queue()
    actor: Any = queue.actor
    waiting = [actor.get.remote(None) for _ in range(1500)]
    queue.put_nowait_batch(range(1500))
    assert sorted(item for _, item in hocket.get(waiting)) == list(range(1500))


def test_a_get_that_is_interrupted_takes_no_item(
    session: hocket.SessionContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = Queue()

    def interrupt(*args: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(api, "get", interrupt)
        with pytest.raises(KeyboardInterrupt):
            queue.get()
    queue.put("item")
    assert queue.get(timeout=30) == "item"


def test_options_of_the_actor(any_session: hocket.SessionContext) -> None:
    queue = Queue(actor_options={"name": "shared", "resources": {}})
    queue.put(1)
    assert hocket.get(hocket.get_actor("shared").qsize.remote()) == 1


@pytest.mark.needs("parallelism")
@pytest.mark.parametrize("force", [False, True])
def test_shutdown(session: hocket.SessionContext, force: bool) -> None:
    queue = Queue()
    failed: list[BaseException] = []
    waiting = threading.Event()

    def wait(actor: Any) -> None:
        ref = actor.get.remote(None)
        waiting.set()
        try:
            hocket.get(ref)
        except hocket.exceptions.ActorDiedError as error:
            failed.append(error)

    thread = threading.Thread(target=wait, args=(queue.actor,))
    thread.start()
    assert waiting.wait(30)
    queue.shutdown(force=force)
    thread.join(30)
    assert len(failed) == 1
    queue.shutdown()
    for call in (lambda: queue.put(1), queue.get, queue.get_nowait, queue.size):
        with pytest.raises(ValueError, match=r"The queue was shut down. Make a new one"):
            call()


def test_bad_input(any_session: hocket.SessionContext) -> None:
    queue = Queue()
    for call in (lambda: queue.get(timeout=-1), lambda: queue.put(1, timeout=-1)):
        with pytest.raises(ValueError, match="'timeout' must be a non-negative number, but received -1"):
            call()
    with pytest.raises(TypeError, match="Argument 'items' must be an Iterable, but received 3"):
        queue.put_nowait_batch(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Argument 'num_items' must be an int, but received 'x'"):
        queue.get_nowait_batch("x")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'num_items' must be nonnegative, but received -1"):
        queue.get_nowait_batch(-1)
    with pytest.raises(TypeError, match="maxsize must be an int, but received 'many'"):
        Queue("many")  # type: ignore[arg-type]
