"""The contract of engines with workers that call actors directly."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from typing import Any

import numpy as np
import pytest

from hocket import exceptions
from hocket.core import actor, api, session
from hocket.testing.suites import programs


class _Log:
    """An actor that records the numbers of its calls in the order of their arrival."""

    def __init__(self) -> None:
        self.entries: list[int] = []

    def add(self, number: int, argument: Any = None, payload: bytes = b"") -> int:
        self.entries.append(number)
        return number

    def read(self) -> list[int]:
        return self.entries


class _Mortal:
    def ping(self) -> int:
        return os.getpid()

    def end(self, end: str) -> None:
        if end == "exit_actor":
            actor.exit_actor()
        elif end == "exit":
            os._exit(3)
        else:
            os.kill(os.getpid(), signal.SIGKILL)


class DirectCallContract:
    """The direct calls of workers on actors, which begin after a few calls. Part of `ProcessEngineContract`."""

    def test_calls_keep_their_order_whichever_way_they_take(self) -> None:
        def call_in_many_ways(log: Any) -> list[int]:
            square = api.remote(programs.square)
            shared, large = api.put(1), np.ones(100_000)
            for number in range(300):
                argument: object = None
                if number % 7 == 3:
                    argument = shared
                elif number % 11 == 5:
                    argument = square.remote(number)
                elif number % 13 == 8:
                    argument = [shared]
                elif number % 53 == 9:
                    argument = large
                log.add.remote(number, argument)
            return list(api.get(log.read.remote()))

        log = api.remote(_Log).remote()
        assert api.get(api.remote(call_in_many_ways).remote(log)) == list(range(300))

    def test_references_on_direct_results_can_leave(self) -> None:
        def pass_on(counter: Any, gate: Any) -> Any:
            square = api.remote(programs.square)
            for _ in range(10):
                api.get(counter.add.remote(0))
                api.get(gate.open.remote())
            done = counter.add.remote(5)
            api.wait([done])
            waiting = gate.wait_again.remote()
            api.get(counter.add.remote(0))
            nested = api.put([done, waiting])
            squared = square.remote(done)
            length = api.remote(len).remote(waiting)
            api.get(gate.open.remote())
            return [done, waiting, nested, squared, length]

        counter, gate = api.remote(programs.Counter).remote(0), api.remote(programs.AsyncGate).remote()
        refs = api.get(api.remote(pass_on).remote(counter, gate))
        done, waiting, nested, squared, length = refs
        assert api.get([done, waiting, squared, length]) == [5, "through", 25, 7]
        assert api.get(api.get(nested)) == [5, "through"]
        del refs, done, waiting, nested, squared, length, counter, gate
        programs.wait_until(lambda: session.get_engine().view.statistics()["objects"] == 0)

    def test_large_results_and_results_with_references_come_all_the_same(self) -> None:
        class Maker:
            def make(self, size: int) -> Any:
                return np.full(size, 7.0)

            def wrap(self, value: int) -> object:
                return [api.put(value)]

            @actor.method(num_returns=2)
            def both(self) -> object:
                return np.ones(100_000), api.put("second")

        def use(maker: Any) -> list[float]:
            sums = [float(api.get(maker.make.remote(size)).sum()) for size in (1, 10, 100_000, 10, 200_000)]
            sums += [api.get(api.get(maker.wrap.remote(value))[0]) for value in range(6)]
            first, second = maker.both.remote()
            return [*sums, float(api.get(first).sum()), len(api.get(api.get(second)))]

        maker = api.remote(Maker).remote()
        expected = [7.0, 70.0, 700_000.0, 70.0, 1_400_000.0, 0, 1, 2, 3, 4, 5, 100_000.0, 6]
        assert api.get(api.remote(use).remote(maker)) == expected
        programs.wait_until(
            lambda: session.get_engine().view.statistics()["objects"] <= 1
        )  # 1 in engines that count an actor as an object

    def test_errors_of_direct_calls_are_raised_and_listed(self) -> None:
        def fail_often(counter: Any) -> list[str]:
            texts = []
            for _ in range(8):
                try:
                    api.get(counter.fail.remote())
                except KeyError as error:
                    texts.append(str(error.args[0]))
            return texts

        counter = api.remote(programs.Counter).remote()
        assert api.get(api.remote(fail_often).remote(counter)) == ["missing"] * 8
        programs.wait_until(lambda: len(api.error_info()) == 8)

    @pytest.mark.needs("death_evidence")
    def test_death_of_an_actor_fails_its_direct_calls(self) -> None:
        def outlive(mortal: Any) -> list[str]:
            programs.call_often(mortal.ping)
            first = mortal.ping.remote()
            api.get(first)
            refs = [first, mortal.end.remote("kill"), mortal.ping.remote(), mortal.ping.remote()]
            api.put(refs[2:])
            outcomes = []
            for ref in [*refs, mortal.ping.remote()]:
                try:
                    outcomes.append(type(api.get(ref)).__name__)
                except exceptions.ActorDiedError as error:
                    outcomes.append("SIGKILL" if "SIGKILL" in str(error) else str(error))
            return outcomes

        mortal = api.remote(_Mortal).remote()
        assert api.get(api.remote(outlive).remote(mortal)) == ["int"] + ["SIGKILL"] * 4

    @pytest.mark.needs("death_evidence")
    def test_promise_of_a_dead_caller_is_broken(self) -> None:
        def promise(gate: Any, keeper: Any) -> None:
            programs.call_often(gate.open)
            waiting = gate.wait_again.remote()
            api.get(keeper.keep.remote([waiting]))
            os.kill(os.getpid(), signal.SIGKILL)

        class Keeper:
            def keep(self, refs: Any) -> None:
                self.refs = refs

            def look(self) -> object:
                return api.get(self.refs)

        gate, keeper = api.remote(programs.AsyncGate).remote(), api.remote(Keeper).remote()
        with pytest.raises(exceptions.WorkerCrashedError):
            api.get(api.remote(max_retries=0)(promise).remote(gate, keeper))
        with pytest.raises(exceptions.OwnerDiedError, match="SIGKILL"):
            api.get(keeper.look.remote())

    def test_direct_calls_are_cancelled(self) -> None:
        def cancel_one(gate: Any) -> str:
            programs.call_often(gate.open)
            waiting = gate.wait_again.remote()
            with pytest.raises(ValueError, match="force=True is not supported"):
                api.cancel(waiting, force=True)
            api.cancel(waiting)
            try:
                return str(api.get(waiting))
            except exceptions.TaskCancelledError:
                return "cancelled"

        gate = api.remote(programs.AsyncGate).remote()
        assert api.get(api.remote(cancel_one).remote(gate)) == "cancelled"

    def test_actor_outlives_its_handle_until_direct_calls_are_answered(self) -> None:
        def drop_early() -> list[int]:
            counter = api.remote(programs.Counter).remote(0)
            for _ in range(8):
                api.get(counter.add.remote(0))
            refs = [counter.add.remote() for _ in range(100)]
            del counter
            return list(api.get(refs))

        assert api.get(api.remote(drop_early).remote()) == list(range(1, 101))
        programs.wait_until(lambda: session.get_engine().view.statistics()["actors"] == 0)

    @pytest.mark.needs("deadlock_search")
    def test_circle_of_direct_calls_is_found(self) -> None:
        class Node:
            def set_peer(self, peer: Any) -> None:
                self.peer = peer

            def warm(self) -> None:
                programs.call_often(self.peer.ping)

            def ping(self) -> int:
                return 1

            def ask(self) -> object:
                return api.get(self.peer.answer.remote())

            def answer(self) -> object:
                return api.get(self.peer.ping.remote())

        first, second = api.remote(Node).remote(), api.remote(Node).remote()
        api.get([first.set_peer.remote(second), second.set_peer.remote(first)])
        api.get(first.warm.remote())
        api.get(second.warm.remote())
        with pytest.raises(exceptions.DeadlockError, match=r"Node\.(answer|ping)"):
            api.get(first.ask.remote())

    def test_threads_of_one_worker_share_a_line(self) -> None:
        def call_in_threads(counter: Any) -> int:
            def add() -> None:
                for _ in range(50):
                    api.get(counter.add.remote())

            threads = [threading.Thread(target=add) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            return int(api.get(counter.get_value.remote()))

        counter = api.remote(programs.Counter).remote(0)
        assert api.get(api.remote(call_in_threads).remote(counter)) == 200

    def test_coroutines_call_directly(self) -> None:
        class Caller:
            async def call(self, counter: Any, n: int) -> int:
                for _ in range(5):
                    await counter.add.remote(0)
                return sum(await asyncio.gather(*[counter.add.remote(1) for _ in range(n)]))

        counter, caller = api.remote(programs.Counter).remote(0), api.remote(Caller).remote()
        assert api.get(caller.call.remote(counter, 100)) == 5050

    def test_order_holds_behind_a_line_that_is_full(self) -> None:
        def flood(log: Any) -> list[int]:
            shared = api.put(1)
            for number in range(600):
                log.add.remote(number, shared if number % 200 == 199 else None, bytes(10_000))
            return list(api.get(log.read.remote()))

        log = api.remote(_Log).remote()
        assert api.get(api.remote(flood).remote(log)) == list(range(600))

    def test_promise_survives_the_normal_end_of_its_worker(self) -> None:
        def pass_on(gate: Any) -> Any:
            programs.call_often(gate.open)
            return [gate.wait_again.remote()]

        gate = api.remote(programs.AsyncGate).remote()
        waiting = api.get(api.remote(max_calls=1)(pass_on).remote(gate))[0]
        api.get(gate.open.remote())
        assert api.get(waiting) == "through"

    @pytest.mark.parametrize("size", [10, 100_000])
    def test_promise_and_delivery_may_cross(self, size: int) -> None:
        class Maker:
            def make(self, size: int) -> object:
                return [api.put(size), np.ones(size)]

        def pass_on(maker: Any, size: int) -> list[float]:
            length = api.remote(len)
            return list(api.get([length.remote(maker.make.remote(size)) for _ in range(40)]))

        maker = api.remote(Maker).remote()
        assert api.get(api.remote(pass_on).remote(maker, size)) == [2] * 40

    def test_promised_call_can_be_cancelled_by_others(self) -> None:
        def pass_on(gate: Any) -> Any:
            programs.call_often(gate.open)
            waiting = gate.wait_again.remote()
            api.get(gate.count.remote())
            return [waiting]

        gate = api.remote(programs.AsyncGate).remote()
        waiting = api.get(api.remote(pass_on).remote(gate))[0]
        api.cancel(waiting)
        with pytest.raises(exceptions.TaskCancelledError):
            api.get(waiting)

    @pytest.mark.parametrize("end", ["exit", "kill", "exit_actor"])
    def test_wait_is_told_of_the_death_of_an_actor_that_is_called_directly(self, end: str) -> None:
        def watch(mortal: Any, end: str) -> list[int]:
            programs.call_often(mortal.ping)
            row = [mortal.end.remote(end), mortal.ping.remote()]
            return [len(part) for part in api.wait(row, num_returns=2, timeout=30)]

        assert api.get(api.remote(watch).remote(api.remote(_Mortal).remote(), end)) == [2, 0]

    @pytest.mark.needs("cancel_before_creation")
    def test_line_begins_behind_a_call_that_is_cancelled(self) -> None:
        def use() -> int:
            counter = api.remote(resources={"camera": 1})(programs.Counter).remote()
            square = api.remote(programs.square)
            slow = square.options(resources={"camera": 1}).remote(3)
            refs = [counter.add.remote(), counter.add.remote(), counter.add.remote()]
            last = counter.add.remote()
            api.cancel(refs[2])
            del slow
            return int(api.get(last))

        assert api.get(api.remote(use).remote()) in (3, 4)
