"""The contract of engines with processes of their own on deaths of processes."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hocket import exceptions
from hocket.core import api, placement, session
from hocket.testing.suites import programs


class Mortal:
    """An actor that can kill its process in a call, or in its constructor."""

    def __init__(self, ends: bool = False) -> None:
        if ends:
            end()

    def end(self) -> None:
        end()


class Listener:
    """An actor that handles SIGTERM."""

    def __init__(self) -> None:
        self.heard = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: self.heard.set())

    def wait(self) -> bool:
        return self.heard.wait(30)

    def get_pid(self) -> int:
        return os.getpid()


def end(*_: object) -> None:
    """Kill this process."""
    os.kill(os.getpid(), signal.SIGKILL)


def _end_after_one() -> Iterator[int]:
    yield 1
    end()


def _crash(max_retries: int = 0) -> Any:
    return api.remote(max_retries=max_retries, name="step three")(end).remote()


def _call_unborn() -> Any:
    return api.remote(Mortal).remote(True).end.remote()


def _call(**options: Any) -> Any:
    return api.remote(Mortal).options(**options).remote().end.remote()


_NEVER_ADVISED = r"(?s)^(?!.*set max_task_retries)"

EVENTS: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "task": (_crash, exceptions.WorkerCrashedError, r"task `step three` (?!.*was tried)"),
    "task, tried again": (lambda: _crash(1), exceptions.WorkerCrashedError, r"(?s)`step three`.*It was tried 2 times"),
    "what depends on it": (
        lambda: api.remote(programs.pass_on).remote(_crash(1)),
        exceptions.WorkerCrashedError,
        r"(?s)task `step three`.*It was tried 2 times",
    ),
    "what depends on that": (
        lambda: api.remote(programs.pass_on).remote(api.remote(programs.pass_on).remote(_crash())),
        exceptions.WorkerCrashedError,
        "`step three`",
    ),
    "one of several": (lambda: [api.put(1), _crash()], exceptions.WorkerCrashedError, "task `step three`"),
    "generator": (
        lambda: list(api.remote(max_retries=0, name="source")(_end_after_one).remote()),
        exceptions.WorkerCrashedError,
        "task `source`",
    ),
    "actor": (_call, exceptions.ActorDiedError, r"Actor `Mortal` is dead: its process \(pid \d+"),
    "constructor": (
        _call_unborn,
        exceptions.ActorDiedError,
        r"Actor `Mortal` is dead: its process \(pid \d+",
    ),
    "lost call": (
        lambda: _call(max_restarts=1),
        exceptions.ActorUnavailableError,
        r"(?s)Call `Mortal\.end` was lost: .*set max_task_retries",
    ),
    "lost call, tried again": (
        lambda: _call(max_restarts=2, max_task_retries=1),
        exceptions.ActorUnavailableError,
        _NEVER_ADVISED + r".*Call `Mortal\.end` was lost: .*it was tried 2 times",
    ),
    "impossible task": (
        lambda: api.remote(num_cpus=99, name="large")(end).remote(),
        exceptions.TaskUnschedulableError,
        r"^Task `large` asks for \{CPU: 99\}, but this session has \{CPU: \d+, camera: 1, memory: [^,:]+\} in all",
    ),
    "impossible actor": (
        lambda: api.remote(num_cpus=99)(Mortal).remote(),
        exceptions.ActorUnschedulableError,
        r"^Actor `Mortal` asks for \{CPU: 99\}, but this session has \{CPU: \d+, camera: 1, memory: [^,:]+\} in all",
    ),
}
"""Events that lose work, by name. Each has a function that causes the event and returns a reference to the lost work,
the error, and a pattern of its text: the name, the number of tries, and the cause."""


class DeathContract:
    """The effects of a dead process. Part of `ProcessEngineContract`."""

    @pytest.mark.parametrize("event", EVENTS)
    def test_error_says_what_was_lost_and_how_often_it_was_tried(self, event: str) -> None:
        make, kind, pattern = EVENTS[event]
        group = placement.placement_group([{"CPU": 1}])  # in Ray it has resources of its own
        assert group.wait(20)
        with pytest.raises(kind, match=pattern) as caught:
            api.get(make())
        assert type(caught.value) is kind
        for foreign in ("_group_", "node:"):
            assert foreign not in str(caught.value)
        placement.remove_placement_group(group)

    def test_resources_are_listed_without_those_of_placement_groups(self) -> None:
        before = api.cluster_resources()
        group = placement.placement_group([{"CPU": 1, "camera": 1}])
        assert group.wait(20)
        assert api.cluster_resources() == before
        assert set(api.available_resources()) <= set(before)
        assert all(set(found["Resources"]) <= set(before) for found in api.nodes())
        placement.remove_placement_group(group)

    @pytest.mark.needs("signal_handlers")
    def test_handler_of_sigterm_that_an_actor_sets_is_called(self) -> None:
        listener = api.remote(Listener).options(max_concurrency=2).remote()
        heard = listener.wait.remote()
        os.kill(api.get(listener.get_pid.remote()), signal.SIGTERM)
        assert api.get(heard)

    def test_worker_ends_after_max_calls(self) -> None:
        pids = [api.get(api.remote(max_calls=2)(programs.get_pid).remote()) for _ in range(6)]
        assert len(set(pids)) == 3
        assert all(pids.count(pid) == 2 for pid in pids)

    def test_environment_has_its_own_processes(self) -> None:
        get_pid = api.remote(programs.get_pid)
        other = get_pid.options(runtime_env={"env_vars": {"HOCKET_A": "1"}})
        plain = {api.get(get_pid.remote()) for _ in range(3)}
        assert not plain & {api.get(other.remote()) for _ in range(3)}

    @pytest.mark.parametrize(("cpus", "threads"), [(1, "1"), (2, "2"), (0.5, "1")])
    def test_libraries_get_as_many_threads_as_cpus(self, cpus: float, threads: str) -> None:
        read = api.remote(num_cpus=cpus)(lambda: os.environ.get("OMP_NUM_THREADS"))
        assert api.get(read.remote()) == os.environ.get("OMP_NUM_THREADS", threads)

    @pytest.mark.needs("deadlock_search")
    def test_wait_in_a_circle_is_found(self) -> None:
        class Node:
            def set_peer(self, peer: Any) -> None:
                self.peer = peer

            def ask(self) -> Any:
                return api.get(self.peer.answer.remote())

            def answer(self) -> object:
                return api.get(self.peer.ask.remote())

        first, second = api.remote(Node).remote(), api.remote(Node).remote()
        api.get([first.set_peer.remote(second), second.set_peer.remote(first)])
        with pytest.raises(
            exceptions.DeadlockError, match=r"Node\.ask(.|\n)*Node\.answer|Node\.answer(.|\n)*Node\.ask"
        ):
            api.get(first.ask.remote())

    @pytest.mark.needs("deadlock_search")
    def test_actor_that_waits_for_itself_is_found(self) -> None:
        class Selfish:
            def ask(self) -> object:
                return api.get(api.get_runtime_context().current_actor.answer.remote())

            def answer(self) -> int:
                return 1

        with pytest.raises(exceptions.DeadlockError, match=r"Selfish\.ask"):
            api.get(api.remote(Selfish).remote().ask.remote())

    def test_call_in_the_row_of_a_thread_pool_can_be_cancelled(self) -> None:
        busy = api.remote(max_concurrency=2, concurrency_groups={"io": 1})(programs.GroupedGate).remote()
        running = [busy.wait.remote() for _ in range(2)]
        queued = busy.wait.remote()
        api.get(busy.__ray_ready__.options(concurrency_group="io").remote())
        api.cancel(queued)
        api.get(busy.open.remote())
        assert api.get(running) == ["through"] * 2
        with pytest.raises(exceptions.TaskCancelledError):
            api.get(queued)

    def test_abandoned_generator_does_not_wait_for_its_reader(self) -> None:
        class Source:
            def count(self) -> Iterator[int]:
                yield from range(100)

            def ping(self) -> str:
                return "pong"

        source = api.remote(Source).remote()
        items = source.count.options(_generator_backpressure_num_objects=2).remote()
        next(items)
        del items
        assert api.get(source.ping.remote()) == "pong"

    @pytest.mark.needs("idle_deaths")
    def test_worker_that_dies_idle_costs_nobody_a_try(self) -> None:
        get_pid = api.remote(max_retries=0)(programs.get_pid)
        for _ in range(3):
            os.kill(api.get(get_pid.remote()), signal.SIGKILL)
            assert api.get(get_pid.remote()) > 0
            os.kill(api.get(get_pid.remote()), signal.SIGKILL)
            assert api.get(api.remote(programs.Counter).remote(1).get_value.remote()) == 1

    @pytest.mark.needs("processes")
    def test_a_death_costs_what_was_running_and_nothing_else(self, tmp_path: Path) -> None:
        trace = tmp_path / "runs"
        task = api.remote(max_retries=0)(programs.note_and_end_some)
        refs = [task.remote(str(trace), number, 20) for number in range(60)]
        failed, values = programs.split_outcomes(refs, exceptions.WorkerCrashedError)
        assert failed == [19, 39, 59]
        assert values == [number for number in range(60) if number not in failed]
        assert sorted(map(int, trace.read_text().split())) == list(range(60))

    @pytest.mark.needs("processes", "exact_deaths")
    def test_a_death_of_an_actor_that_is_built_again_costs_the_call_that_ran(self, tmp_path: Path) -> None:
        trace = tmp_path / "runs"

        class Mortal:
            def work(self, number: int) -> int:
                return programs.note_and_end_some(str(trace), number, 20)

        mortal = api.remote(max_restarts=-1)(Mortal).remote()
        failed, values = programs.split_outcomes(
            [mortal.work.remote(number) for number in range(60)], exceptions.ActorUnavailableError
        )
        assert failed == [19, 39, 59]
        assert values == [number for number in range(60) if number not in failed]
        assert sorted(map(int, trace.read_text().split())) == list(range(60))

    @pytest.mark.needs("processes", "exact_deaths")
    def test_items_of_a_generator_arrive_before_its_death(self) -> None:
        def produce() -> Iterator[int]:
            yield from range(100)
            os._exit(3)

        items = api.remote(max_retries=0)(produce).remote()
        assert [api.get(next(items)) for _ in range(100)] == list(range(100))
        with pytest.raises(exceptions.WorkerCrashedError):
            api.get(next(items))

    def test_workers_may_poll(self) -> None:
        def poll(refs: Any) -> tuple[int, int, object]:
            ready, rest = api.wait(refs, num_returns=2, timeout=0)
            return len(ready), len(rest), api.get(ready[0], timeout=0)

        gate = api.remote(programs.AsyncGate).remote()
        there, missing = api.put("there"), gate.wait.remote()
        assert api.get(api.remote(poll).remote([there, missing])) == (1, 1, "there")

    def test_threads_of_an_actor_may_wait_for_tasks_that_call_it(self) -> None:
        class Host:
            def start(self, task: Any, me: Any) -> None:
                self.answers: list[object] = []
                self.thread = threading.Thread(target=lambda: self.answers.append(api.get(task.remote(me))))
                self.thread.start()

            def ping(self) -> str:
                time.sleep(0.05)
                return "pong"

            def look(self) -> list[Any]:
                return self.answers

        def call_often(host: Any) -> int:
            return len(api.get([host.ping.remote() for _ in range(50)]))

        host = api.remote(Host).remote()
        api.get(host.start.remote(api.remote(call_often), host))
        programs.wait_until(lambda: api.get(host.look.remote()) == [50])

    @pytest.mark.needs("long_chains")
    def test_long_chains_fail_and_are_freed(self) -> None:
        gate = api.remote(programs.AsyncGate).remote()
        ref = gate.fail_when_open.remote()
        add = api.remote(lambda x: x)
        for _ in range(3000):
            ref = add.remote(ref)
        nested: object = api.put(1)
        for _ in range(3000):
            nested = api.put([nested])
        api.get(gate.open.remote())
        with pytest.raises(KeyError, match="opened"):
            api.get(ref)
        del ref, nested, gate
        programs.wait_until(lambda: session.get_engine().view.statistics()["objects"] == 0)
