"""The judge of an engine: tests that every engine must pass, through the public API.

To test an engine, inherit and say how to open it::

    class TestMine(EngineContract):
        engine = "mine"

`ProcessEngineContract` adds what only engines with processes of their own can do: parallelism, time-outs, interrupts, deaths.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from hocket import exceptions
from hocket.core import actor, api, placement, session
from hocket.testing import leftovers

CPUS = 2


def _square(x: int) -> int:
    return x * x


class _Counter:
    def __init__(self, start: int = 0) -> None:
        self.value = start

    def add(self, amount: int = 1) -> int:
        self.value += amount
        return self.value

    def fail(self) -> None:
        raise KeyError("missing")

    def get_pid(self) -> int:
        return os.getpid()


class EngineContract:
    """What every engine must do."""

    engine = ""

    @pytest.fixture(autouse=True)
    def open_session(self) -> Iterator[None]:
        """Open a session for each test, and check that it leaves nothing."""
        before = leftovers.Leftovers.look()
        with session.init(num_cpus=CPUS, resources={"camera": 1}, engine=self.engine):
            yield
        assert before.list_new() == []

    # --- tasks ---

    def test_task_returns_its_value(self) -> None:
        square = api.remote(_square)
        assert api.get(square.remote(7)) == 49

    def test_many_tasks_keep_their_order_in_get(self) -> None:
        square = api.remote(_square)
        assert api.get([square.remote(x) for x in range(500)]) == [x * x for x in range(500)]

    def test_top_level_references_are_resolved_by_position_and_by_keyword(self) -> None:
        @api.remote
        def join(first: str, second: str) -> str:
            return first + second

        assert api.get(join.remote(api.put("a"), second=api.put("b"))) == "ab"

    def test_nested_references_stay_references(self) -> None:
        @api.remote
        def open_box(box: list[Any]) -> int:
            return int(api.get(box[0])) + 1

        assert api.get(open_box.remote([api.put(41)])) == 42

    def test_several_returns(self) -> None:
        @api.remote(num_returns=3)
        def three() -> tuple[int, int, int]:
            return 1, 2, 3

        assert api.get(three.remote()) == [1, 2, 3]

    def test_no_returns(self) -> None:
        @api.remote(num_returns=0)
        def nothing() -> None:
            return None

        assert nothing.remote() is None

    def test_wrong_number_of_returns_is_an_error(self) -> None:
        @api.remote(num_returns=2)
        def three() -> tuple[int, int, int]:
            return 1, 2, 3

        with pytest.raises(ValueError, match=r"num_returns=2 but returned 3 values"):
            api.get(three.remote()[0])

    def test_tasks_nest_deeper_than_there_are_cpus(self) -> None:
        @api.remote
        def depth(left: int) -> int:
            return 0 if left == 0 else 1 + int(api.get(depth.remote(left - 1)))

        assert api.get(depth.remote(10)) == 10

    def test_closure_may_hold_a_reference(self) -> None:
        ref = api.put(5)

        @api.remote
        def read() -> int:
            return int(api.get(ref))

        assert api.get(read.remote()) == 5

    def test_result_may_hold_references(self) -> None:
        @api.remote
        def wrap() -> list[Any]:
            return [api.put(1), api.put(2)]

        assert api.get(api.get(wrap.remote())) == [1, 2]

    # --- errors ---

    def test_error_is_of_both_classes_and_has_the_remote_traceback(self) -> None:
        @api.remote
        def fail() -> None:
            raise ValueError("deliberate")

        with pytest.raises(ValueError, match="deliberate") as caught:
            api.get(fail.remote())
        assert isinstance(caught.value, exceptions.TaskError)
        assert isinstance(caught.value.cause, ValueError)
        assert "in fail" in str(caught.value)

    def test_failed_dependency_fails_its_dependants_with_the_cause_and_without_running_them(self) -> None:
        @api.remote
        def fail() -> None:
            raise LookupError("first")

        @api.remote
        def use(value: Any, log: Any) -> None:
            api.get(log.add.remote())

        log = api.remote(_Counter).remote()
        with pytest.raises(LookupError, match="first"):
            api.get(use.remote(use.remote(fail.remote(), log), log))
        assert api.get(log.add.remote(0)) == 0

    def test_retry_exceptions_tries_again(self) -> None:
        counter = api.remote(_Counter).remote()

        @api.remote(max_retries=5, retry_exceptions=[OSError])
        def flaky(counter: Any) -> int:
            count = int(api.get(counter.add.remote()))
            if count < 3:
                raise OSError(count)
            return count

        assert api.get(flaky.remote(counter)) == 3

    def test_exceptions_that_are_not_named_are_not_tried_again(self) -> None:
        counter = api.remote(_Counter).remote()

        @api.remote(max_retries=5, retry_exceptions=[OSError])
        def fail(counter: Any) -> None:
            api.get(counter.add.remote())
            raise KeyError("no")

        with pytest.raises(KeyError, match="no"):
            api.get(fail.remote(counter))
        assert api.get(counter.add.remote(0)) == 1

    def test_error_info_lists_failures(self) -> None:
        @api.remote
        def fail() -> None:
            raise ValueError("listed")

        with pytest.raises(ValueError, match="listed"):
            api.get(fail.remote())
        assert [(record.name, record.error_type, record.message) for record in api.error_info()] == [
            ("fail", "ValueError", "listed")
        ]

    # --- values ---

    def test_put_takes_a_snapshot(self) -> None:
        value = [1]
        ref = api.put(value)
        value.append(2)
        assert api.get(ref) == [1]

    @pytest.mark.parametrize("items", [10, 10_000, 1_000_000])
    def test_arrays_come_back_equal_writable_and_private(self, items: int) -> None:
        array = np.arange(items)
        ref = api.put(array)
        first, second = api.get([ref, ref])
        assert np.array_equal(first, array)
        first[0] = -1
        assert second[0] == 0
        assert api.get(ref)[0] == 0

    @pytest.mark.parametrize("items", [10, 10_000, 1_000_000])
    def test_arrays_travel_as_arguments_and_results(self, items: int) -> None:
        @api.remote
        def double(array: Any) -> Any:
            array *= 2
            return array

        array = np.arange(items)
        assert np.array_equal(api.get(double.remote(array)), np.arange(items) * 2)
        ref = api.put(array)
        assert np.array_equal(api.get(double.remote(double.remote(ref))), np.arange(items) * 4)
        assert np.array_equal(api.get(ref), np.arange(items))

    def test_large_arguments_keep_apart(self) -> None:
        @api.remote(num_returns=2)
        def both(first: Any, second: Any) -> tuple[Any, Any]:
            return first + 1, second + 1

        first, second = np.zeros(1_000_000), np.full(500_000, 5.0)
        found = api.get(both.remote(first, api.put(second)))
        assert (found[0].shape, float(found[0][-1])) == ((1_000_000,), 1.0)
        assert (found[1].shape, float(found[1][-1])) == ((500_000,), 6.0)

    def test_duplicates_in_get_inside_a_task(self) -> None:
        @api.remote
        def twice(box: list[Any]) -> int:
            first, second = api.get([box[0], box[0]])
            first[0] = 7
            return int(second[0])

        assert api.get(twice.remote([api.put(np.zeros(1_000_000))])) == 0

    def test_objects_are_freed_with_their_last_reference(self) -> None:
        before = session.get_engine().statistics()["objects"]
        refs = [api.put(x) for x in range(100)]
        assert session.get_engine().statistics()["objects"] == before + 100
        del refs
        assert session.get_engine().statistics()["objects"] == before

    def test_finished_tasks_leave_no_records(self) -> None:
        square = api.remote(_square)
        api.get([square.remote(x) for x in range(100)])
        statistics = session.get_engine().statistics()
        assert (statistics["tasks"], statistics["objects"]) == (0, 0)

    def test_get_twice_gives_distinct_values(self) -> None:
        ref = api.put([1])
        assert api.get(ref) is not api.get(ref)

    def test_one_handle_for_each_object(self) -> None:
        ref = api.put(1)
        assert api.get(api.put([ref]))[0] is ref

    # --- wait ---

    def test_wait_returns_exactly_as_many_as_asked_in_order(self) -> None:
        refs = [api.put(x) for x in range(4)]
        ready, rest = api.wait(refs, num_returns=2)
        assert (ready, rest) == (refs[:2], refs[2:])

    def test_wait_counts_errors_as_ready(self) -> None:
        @api.remote
        def fail() -> None:
            raise ValueError("counts")

        ref = fail.remote()
        assert api.wait([ref]) == ([ref], [])

    # --- actors ---

    def test_actor_keeps_state_and_order(self) -> None:
        counter = api.remote(_Counter).remote(10)
        assert api.get([counter.add.remote() for _ in range(100)]) == list(range(11, 111))

    def test_actor_method_errors_leave_it_alive(self) -> None:
        counter = api.remote(_Counter).remote()
        with pytest.raises(KeyError, match="missing"):
            api.get(counter.fail.remote())
        assert api.get(counter.add.remote()) == 1

    def test_handles_travel(self) -> None:
        counter = api.remote(_Counter).remote()

        @api.remote
        def use(handle: Any) -> int:
            return int(api.get(handle.add.remote(5)))

        assert api.get([use.remote(counter), use.remote(counter)])[1] in (5, 10)
        assert api.get(counter.add.remote(0)) == 10

    def test_failed_constructor_fails_every_call_with_its_error(self) -> None:
        class Broken:
            def __init__(self) -> None:
                raise RuntimeError("constructor failed")

            def use(self) -> None:
                return None

        broken = api.remote(Broken).remote()
        with pytest.raises((exceptions.ActorDiedError, RuntimeError), match="constructor"):
            api.get(broken.use.remote())

    def test_killed_actor_fails_its_calls(self) -> None:
        counter = api.remote(_Counter).remote()
        api.get(counter.add.remote())
        api.kill(counter)
        with pytest.raises(exceptions.ActorDiedError, match="killed by `kill`"):
            api.get(counter.add.remote())

    def test_actor_ends_with_its_last_handle(self) -> None:
        counter = api.remote(_Counter).remote()
        ref = counter.add.remote()
        del counter
        assert api.get(ref) == 1
        deadline = time.monotonic() + 5
        while session.get_engine().statistics()["actors"] and time.monotonic() < deadline:
            threading.Event().wait(0.005)
        assert session.get_engine().statistics()["actors"] == 0

    def test_named_actors_are_found_until_they_end(self) -> None:
        cls = api.remote(_Counter)
        counter = cls.options(name="the counter").remote(1)
        assert api.get(api.get_actor("the counter").add.remote()) == 2
        with pytest.raises(exceptions.ActorAlreadyExistsError, match="'the counter' is taken"):
            cls.options(name="the counter").remote()
        assert cls.options(name="the counter", get_if_exists=True).remote() == counter
        api.kill(counter)
        with pytest.raises(ValueError, match="Failed to look up actor with name 'the counter'"):
            api.get_actor("the counter")

    def test_method_with_several_returns(self) -> None:
        class Pair:
            @actor.method(num_returns=2)
            def both(self) -> tuple[int, int]:
                return 1, 2

        assert api.get(api.remote(Pair).remote().both.remote()) == [1, 2]

    # --- resources ---

    def test_resources_are_reported(self) -> None:
        assert api.cluster_resources() == {"CPU": float(CPUS), "camera": 1.0}
        assert api.available_resources() == {"CPU": float(CPUS), "camera": 1.0}
        assert [node["Alive"] for node in api.nodes()] == [True]

    def test_actor_holds_what_it_names(self) -> None:
        counter = api.remote(num_cpus=1, resources={"camera": 1})(_Counter).remote()
        api.get(counter.add.remote())
        assert api.available_resources() == {"CPU": CPUS - 1.0}

    @pytest.mark.parametrize(
        ("given", "shown"), [({"num_cpus": 64}, "CPU: 64"), ({"resources": {"lidar": 1}}, "lidar: 1")]
    )
    def test_impossible_requests_are_refused_at_the_call(self, given: dict[str, Any], shown: str) -> None:
        with pytest.raises(exceptions.TaskUnschedulableError, match=f"asks for .*{shown}.*has .*Ask for less"):
            api.remote(**given)(_square).remote(1)
        with pytest.raises(exceptions.ActorUnschedulableError, match=shown):
            api.remote(**given)(_Counter).remote()

    def test_placement_group_reserves_all_or_nothing(self) -> None:
        group = placement.placement_group([{"CPU": 1}, {"CPU": 1}], name="both")
        assert group.wait(10)
        assert "CPU" not in api.available_resources()
        strategy = placement.PlacementGroupSchedulingStrategy(group, 1)
        counter = api.remote(num_cpus=1, scheduling_strategy=strategy)(_Counter).remote()
        assert api.get(counter.add.remote()) == 1
        assert placement.get_placement_group("both") == group
        placement.remove_placement_group(group)
        with pytest.raises(exceptions.ActorDiedError, match=r"[Pp]lacement group .*removed"):
            api.get(counter.add.remote())
        assert api.available_resources()["CPU"] == CPUS

    def test_placement_groups_wait_for_each_other(self) -> None:
        first = placement.placement_group([{"CPU": 2}])
        others = [placement.placement_group([{"CPU": 1}]) for _ in range(2)]
        ready = [group.ready() for group in others]
        placement.remove_placement_group(first)
        assert api.get(ready) == [None, None]

    def test_what_waits_for_a_removed_placement_group_fails(self) -> None:
        first, second = placement.placement_group([{"CPU": 2}]), placement.placement_group([{"CPU": 1}])
        pending = second.ready()
        strategy = placement.PlacementGroupSchedulingStrategy(second)
        task = api.remote(scheduling_strategy=strategy)(_square).remote(1)
        placement.remove_placement_group(second)
        late = api.remote(scheduling_strategy=strategy)(_square).remote(1)
        for ref in (pending, task, late):
            with pytest.raises(exceptions.TaskPlacementGroupRemoved, match="removed"):
                api.get(ref)
        placement.remove_placement_group(first)

    def test_impossible_placement_group_is_refused(self) -> None:
        with pytest.raises(exceptions.InfeasibleResourcesError, match=r"asks for .*CPU: 2.* but this session has"):
            placement.placement_group([{"CPU": 2}, {"CPU": 2}])

    def test_context_tells_where_the_code_runs(self) -> None:
        @api.remote(num_cpus=0.5)
        def tell() -> tuple[str | None, str | None, dict[str, float]]:
            context = api.get_runtime_context()
            return context.get_task_name(), context.get_actor_id(), context.get_assigned_resources()

        assert api.get(tell.remote()) == ("tell", None, {"CPU": 0.5})
        assert api.get_runtime_context().get_task_id() is None

    def test_unpicklable_argument_names_the_part(self) -> None:
        with pytest.raises(exceptions.SerializationError, match=r"\['inner'\].*lock.*Remedy"):
            api.remote(_square).remote({"inner": threading.Lock()})

    def test_unpicklable_result_is_the_tasks_error(self) -> None:
        @api.remote
        def lock() -> Any:
            return threading.Lock()

        with pytest.raises(exceptions.SerializationError, match=r"the result of `lock`.*Remedy"):
            api.get(lock.remote())


class ProcessEngineContract(EngineContract):
    """What engines with processes of their own must also do."""

    def test_tasks_run_in_other_processes_at_the_same_time(self) -> None:
        class Meeting:
            def __init__(self) -> None:
                self.barrier = threading.Barrier(2)

            def come(self) -> bool:
                self.barrier.wait(30)
                return True

        meeting = api.remote(Meeting).options(max_concurrency=2).remote()

        @api.remote
        def join(meeting: Any) -> tuple[bool, int]:
            return api.get(meeting.come.remote()), os.getpid()

        (_, first), (_, second) = api.get([join.remote(meeting), join.remote(meeting)])
        assert len({first, second, os.getpid()}) == 3

    def test_get_times_out_and_the_task_goes_on(self) -> None:
        gate = api.remote(_Gate).options(max_concurrency=2).remote()
        ref = gate.wait.remote()
        with pytest.raises(exceptions.GetTimeoutError, match=r"not there after 0.05 s"):
            api.get(ref, timeout=0.05)
        with pytest.raises(TimeoutError):
            api.get(ref, timeout=0)
        gate.open.remote()
        assert api.get(ref) == "open"

    def test_get_raises_the_first_error_without_waiting_for_the_rest(self) -> None:
        gate = api.remote(_Gate).options(max_concurrency=2).remote()
        ref = gate.wait.remote()

        @api.remote
        def fail() -> None:
            raise ValueError("at once")

        with pytest.raises(ValueError, match="at once"):
            api.get([ref, fail.remote()])
        gate.open.remote()

    def test_wait_gives_what_is_ready_when_the_time_is_over(self) -> None:
        gate = api.remote(_Gate).options(max_concurrency=2).remote()
        late, there = gate.wait.remote(), api.put(1)
        assert api.wait([late, there], num_returns=2, timeout=0.05) == ([there], [late])
        gate.open.remote()

    def test_late_argument_holds_up_its_own_caller_only(self) -> None:
        gate = api.remote(_Gate).options(max_concurrency=2).remote()
        counter = api.remote(_Counter).remote()
        late = api.remote(_pass_on).remote(gate.wait_for.remote(100))
        first, second = counter.add.remote(late), counter.add.remote()

        @api.remote
        def other(counter: Any) -> int:
            return int(api.get(counter.add.remote(1000)))

        assert api.get(other.remote(counter)) == 1000
        gate.open.remote()
        assert api.get([first, second]) == [1100, 1101]

    def test_cancelled_before_start_never_runs(self) -> None:
        gate = api.remote(_Gate).options(max_concurrency=2).remote()
        counter = api.remote(_Counter).remote()

        @api.remote
        def count(late: Any, counter: Any) -> None:
            api.get(counter.add.remote())

        ref = count.remote(gate.wait.remote(), counter)
        api.cancel(ref)
        with pytest.raises(exceptions.TaskCancelledError, match="cancelled before it started"):
            api.get(ref)
        gate.open.remote()
        assert api.get(counter.add.remote(0)) == 0

    @pytest.mark.parametrize("force", [False, True])
    def test_cancelled_while_running_is_interrupted(self, force: bool) -> None:
        gate = api.remote(_Gate).options(max_concurrency=2).remote()

        @api.remote
        def run(gate: Any) -> None:
            gate.open.remote()
            time.sleep(60)

        ref = run.remote(gate)
        api.get(gate.wait.remote())
        api.cancel(ref, force=force)
        with pytest.raises(exceptions.TaskCancelledError, match="cancelled"):
            api.get(ref, timeout=20)

    def test_cancelling_by_force_spares_the_task_in_front(self) -> None:
        gate = api.remote(_Gate).options(max_concurrency=8).remote()

        @api.remote(max_retries=0)
        def maybe_wait(gate: Any) -> str:
            return str(api.get(gate.wait.remote())) if gate is not None else "short"

        api.get([maybe_wait.remote(None) for _ in range(300)])  # the function is now known to be short: rows are deep
        late = [maybe_wait.remote(gate) for _ in range(2)]
        behind = [maybe_wait.remote(gate) for _ in range(6)]
        for ref in behind:
            api.cancel(ref, force=True)
        gate.open.remote()
        assert api.get(late, timeout=30) == ["open", "open"]

    def test_cancel_wakes_another_thread_that_waits(self) -> None:
        gate = api.remote(_Gate).options(max_concurrency=2).remote()
        ref = api.remote(_pass_on).remote(gate.wait.remote())
        canceller = threading.Timer(0.1, api.cancel, [ref])
        canceller.start()
        with pytest.raises(exceptions.TaskCancelledError, match="cancelled before it started"):
            api.get(ref, timeout=30)
        canceller.join()
        gate.open.remote()

    def test_threaded_actor_answers_while_another_call_waits(self) -> None:
        class Waiter:
            def wait_for(self, refs: list[Any]) -> int:
                return len(api.wait(refs, num_returns=1)[0])

            def answer(self) -> str:
                return "here"

        gate = api.remote(_Gate).options(max_concurrency=2).remote()
        waiter = api.remote(Waiter).options(max_concurrency=2).remote()
        waiting = waiter.wait_for.remote([gate.wait.remote()])
        assert api.get([waiter.answer.remote() for _ in range(20)], timeout=30) == ["here"] * 20
        gate.open.remote()
        assert api.get(waiting, timeout=30) == 1

    def test_dead_worker_is_explained(self) -> None:
        @api.remote(max_retries=0)
        def die() -> None:
            sys.stderr.write("a last word\n")
            os.kill(os.getpid(), signal.SIGKILL)

        with pytest.raises(
            exceptions.WorkerCrashedError, match=r"killed by signal 9 \(SIGKILL\)(.|\n)*a last word"
        ) as caught:
            api.get(die.remote())
        assert caught.value.death is not None
        assert caught.value.death.peak_rss_bytes > 0

    def test_segmentation_fault_is_explained_with_the_stack(self) -> None:
        @api.remote(max_retries=0)
        def crash() -> None:
            os.kill(os.getpid(), signal.SIGSEGV)

        with pytest.raises(exceptions.WorkerCrashedError, match=r"SIGSEGV(.|\n)*in crash"):
            api.get(crash.remote())

    def test_exit_code_is_explained(self) -> None:
        @api.remote(max_retries=0)
        def leave() -> None:
            raise SystemExit(3)

        with pytest.raises(exceptions.WorkerCrashedError, match="exited with code 3"):
            api.get(leave.remote())

    def test_dead_worker_is_tried_again_as_often_as_asked(self) -> None:
        counter = api.remote(_Counter).remote()

        @api.remote(max_retries=2)
        def die_twice(counter: Any) -> int:
            count = int(api.get(counter.add.remote()))
            if count < 3:
                os.kill(os.getpid(), signal.SIGKILL)
            return count

        assert api.get(die_twice.remote(counter)) == 3

    def test_dead_actor_is_explained(self) -> None:
        counter = api.remote(_Counter).remote()
        pid = api.get(counter.get_pid.remote())
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(exceptions.ActorDiedError, match=rf"pid {pid}\) was killed by signal 9") as caught:
            api.get([counter.add.remote() for _ in range(1000)])
        assert caught.value.death is not None

    def test_long_task_does_not_hold_up_short_ones_behind_it(self) -> None:
        gate = api.remote(_Gate).options(max_concurrency=8).remote()

        @api.remote
        def maybe_wait(gate: Any) -> None:
            if gate is not None:
                api.get(gate.wait.remote())

        api.get([maybe_wait.remote(None) for _ in range(300)])  # the function is now known to be short
        late = maybe_wait.remote(gate)
        api.get([maybe_wait.remote(None) for _ in range(300)], timeout=30)
        gate.open.remote()
        api.get(late)

    def test_threaded_actor_runs_calls_at_once(self) -> None:
        gate = api.remote(_Gate).options(max_concurrency=2).remote()
        ref = gate.wait.remote()
        gate.open.remote()
        assert api.get(ref, timeout=20) == "open"

    def test_references_outlive_the_worker_that_made_them(self) -> None:
        class Maker:
            def make(self) -> list[Any]:
                return [api.put(np.arange(1_000_000)), api.put("small")]

            def get_pid(self) -> int:
                return os.getpid()

        maker = api.remote(Maker).remote()
        large, small = api.get(maker.make.remote())
        api.kill(maker)
        assert int(api.get(large).sum()) == 499_999_500_000
        assert api.get(small) == "small"

    def test_shared_memory_is_given_back(self) -> None:
        ref = api.put(np.zeros(1_000_000))
        assert session.get_engine().statistics()["shared_bytes"] >= 8_000_000
        array = api.get(ref)
        del ref
        assert float(array.sum()) == 0.0
        del array
        assert session.get_engine().statistics()["shared_bytes"] == 0

    def test_view_into_shared_memory_outlives_its_reference(self) -> None:
        view = api.get(api.put(np.full(1_000_000, 7)))
        for _ in range(3):
            api.put(np.zeros(1_000_000, dtype=np.int64))
        assert int(view.min()) == 7


class _Gate:
    def __init__(self) -> None:
        self.event = threading.Event()

    def wait(self) -> str:
        assert self.event.wait(60)
        return "open"

    def wait_for(self, value: int) -> int:
        assert self.event.wait(60)
        return value

    def open(self) -> None:
        self.event.set()


def _pass_on(value: Any) -> Any:
    return value
