"""The contract of engines with processes of their own: parallelism, time-outs, interrupts, cancellation."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest

from hocket import exceptions
from hocket.core import api, session
from hocket.testing.suites import programs


class ProcessContract:
    """The processes of engines with processes of their own. Part of `ProcessEngineContract`."""

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
        gate = api.remote(programs.Gate).options(max_concurrency=2).remote()
        ref = gate.wait.remote()
        with pytest.raises(exceptions.GetTimeoutError, match=r"not ready after 0.05 s"):
            api.get(ref, timeout=0.05)
        with pytest.raises(TimeoutError):
            api.get(ref, timeout=0)
        gate.open.remote()
        assert api.get(ref) == "open"

    def test_get_raises_the_first_error_without_waiting_for_the_rest(self) -> None:
        gate = api.remote(programs.Gate).options(max_concurrency=2).remote()
        ref = gate.wait.remote()

        @api.remote
        def fail() -> None:
            raise ValueError("at once")

        with pytest.raises(ValueError, match="at once"):
            api.get([ref, fail.remote()])
        gate.open.remote()

    def test_wait_gives_what_is_ready_when_the_time_is_over(self) -> None:
        gate = api.remote(programs.Gate).options(max_concurrency=2).remote()
        late, there = gate.wait.remote(), api.put(1)
        assert api.wait([late, there], num_returns=2, timeout=0.05) == ([there], [late])
        gate.open.remote()

    def test_late_argument_holds_up_its_own_caller_only(self) -> None:
        gate = api.remote(programs.Gate).options(max_concurrency=2).remote()
        counter = api.remote(programs.Counter).remote()
        late = api.remote(programs.pass_on).remote(gate.wait_for.remote(100))
        first, second = counter.add.remote(late), counter.add.remote()

        @api.remote
        def other(counter: Any) -> int:
            return int(api.get(counter.add.remote(1000)))

        assert api.get(other.remote(counter)) == 1000
        gate.open.remote()
        assert api.get([first, second]) == [1100, 1101]

    def test_cancelled_before_start_never_runs(self) -> None:
        gate = api.remote(programs.Gate).options(max_concurrency=2).remote()
        counter = api.remote(programs.Counter).remote()

        @api.remote
        def count(late: object, counter: Any) -> None:
            api.get(counter.add.remote())

        ref = count.remote(gate.wait.remote(), counter)
        api.cancel(ref)
        with pytest.raises(exceptions.TaskCancelledError, match=r"cancelled before it (started|was done)") as caught:
            api.get(ref)
        assert not isinstance(caught.value, exceptions.TaskError)
        gate.open.remote()
        assert api.get(counter.add.remote(0)) == 0

    @pytest.mark.needs("interrupted_sleep")
    @pytest.mark.parametrize("force", [False, True])
    def test_cancelled_while_running_is_interrupted(self, force: bool) -> None:
        gate = api.remote(programs.Gate).options(max_concurrency=2).remote()

        @api.remote
        def run(gate: Any) -> None:
            gate.open.remote()
            time.sleep(60)

        ref = run.remote(gate)
        api.get(gate.wait.remote())
        api.cancel(ref, force=force)
        with pytest.raises(exceptions.TaskCancelledError, match="cancelled") as caught:
            api.get(ref, timeout=20)
        assert isinstance(caught.value, exceptions.TaskError) or force

    def test_cancelling_by_force_spares_the_task_in_front(self) -> None:
        gate = api.remote(programs.Gate).options(max_concurrency=8).remote()

        @api.remote(max_retries=0)
        def maybe_wait(gate: Any) -> str:
            return str(api.get(gate.wait.remote())) if gate is not None else "short"

        api.get([maybe_wait.remote(None) for _ in range(300)])  # now it is known to be short: deep queues
        late = [maybe_wait.remote(gate) for _ in range(2)]
        behind = [maybe_wait.remote(gate) for _ in range(6)]
        for ref in behind:
            api.cancel(ref, force=True)
        gate.open.remote()
        assert api.get(late, timeout=30) == ["open", "open"]

    def test_cancel_wakes_another_thread_that_waits(self) -> None:
        gate = api.remote(programs.Gate).options(max_concurrency=2).remote()
        ref = api.remote(programs.pass_on).remote(gate.wait.remote())
        canceller = threading.Timer(0.1, api.cancel, [ref])
        canceller.start()
        with pytest.raises(exceptions.TaskCancelledError, match=r"cancelled before it (started|was done)"):
            api.get(ref, timeout=30)
        canceller.join()
        gate.open.remote()

    def test_threaded_actor_answers_while_another_call_waits(self) -> None:
        class Waiter:
            def wait_for(self, refs: list[Any]) -> int:
                return len(api.wait(refs, num_returns=1)[0])

            def answer(self) -> str:
                return "here"

        gate = api.remote(programs.Gate).options(max_concurrency=2).remote()
        waiter = api.remote(Waiter).options(max_concurrency=2).remote()
        waiting = waiter.wait_for.remote([gate.wait.remote()])
        assert api.get([waiter.answer.remote() for _ in range(20)], timeout=30) == ["here"] * 20
        gate.open.remote()
        assert api.get(waiting, timeout=30) == 1

    @pytest.mark.needs("death_evidence")
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

    @pytest.mark.needs("death_evidence")
    def test_segmentation_fault_is_explained_with_the_stack(self) -> None:
        @api.remote(max_retries=0)
        def crash() -> None:
            os.kill(os.getpid(), signal.SIGSEGV)

        with pytest.raises(exceptions.WorkerCrashedError, match=r"SIGSEGV(.|\n)*in crash"):
            api.get(crash.remote())

    @pytest.mark.needs("death_evidence")
    def test_exit_code_is_explained(self) -> None:
        @api.remote(max_retries=0)
        def leave() -> None:
            raise SystemExit(3)

        with pytest.raises(exceptions.WorkerCrashedError, match="exited with code 3"):
            api.get(leave.remote())

    def test_dead_worker_is_tried_again_as_often_as_asked(self) -> None:
        counter = api.remote(programs.Counter).remote()

        @api.remote(max_retries=2)
        def die_twice(counter: Any) -> int:
            count = int(api.get(counter.add.remote()))
            if count < 3:
                os.kill(os.getpid(), signal.SIGKILL)
            return count

        assert api.get(die_twice.remote(counter)) == 3

    @pytest.mark.needs("death_evidence")
    def test_dead_actor_is_explained(self) -> None:
        counter = api.remote(programs.Counter).remote()
        pid = api.get(counter.get_pid.remote())
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(exceptions.ActorDiedError, match=rf"pid {pid}\) was killed by signal 9") as caught:
            api.get([counter.add.remote() for _ in range(1000)])
        assert caught.value.death is not None

    def test_long_task_does_not_hold_up_short_ones_behind_it(self) -> None:
        gate = api.remote(programs.Gate).options(max_concurrency=8).remote()

        @api.remote
        def maybe_wait(gate: Any) -> None:
            if gate is not None:
                api.get(gate.wait.remote())

        api.get([maybe_wait.remote(None) for _ in range(300)])  # now the function is known to be short
        late = maybe_wait.remote(gate)
        api.get([maybe_wait.remote(None) for _ in range(300)], timeout=30)
        gate.open.remote()
        api.get(late)

    def test_threaded_actor_runs_calls_at_once(self) -> None:
        gate = api.remote(programs.Gate).options(max_concurrency=2).remote()
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

    @pytest.mark.needs("exact_statistics")
    def test_shared_memory_is_given_back(self) -> None:
        ref = api.put(np.zeros(1_000_000))
        assert session.get_engine().view.statistics()["shared_bytes"] >= 8_000_000
        array = api.get(ref)
        del ref
        assert float(array.sum()) == 0.0
        del array
        assert session.get_engine().view.statistics()["shared_bytes"] == 0

    def test_view_into_shared_memory_outlives_its_reference(self) -> None:
        view = api.get(api.put(np.full(1_000_000, 7)))
        for _ in range(3):
            api.put(np.zeros(1_000_000, dtype=np.int64))
        assert int(view.min()) == 7
