"""The contract of every engine on actors."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from hocket import exceptions
from hocket.core import actor, api, session
from hocket.testing.suites import programs


class ActorContract:
    """The actors of every engine. Part of `EngineContract`."""

    def test_actor_keeps_state_and_order(self) -> None:
        counter = api.remote(programs.Counter).remote(10)
        assert api.get([counter.add.remote() for _ in range(100)]) == list(range(11, 111))

    @pytest.mark.parametrize("methods", ["plain", "async"])
    def test_actor_builds_actors_of_its_own_class(self, methods: str) -> None:
        class Node:
            def __init__(self, depth: int) -> None:
                self.children = [remote.remote(depth - 1) for _ in range(2)] if depth else []

            def count(self) -> int:
                counts: list[int] = api.get([child.count.remote() for child in self.children])
                return 1 + sum(counts)

            def list_children(self) -> list[object]:
                return list(self.children)

        class AsyncNode(Node):
            async def count(self) -> int:  # type: ignore[override]
                counts: list[int] = [await child.count.remote() for child in self.children]
                return 1 + sum(counts)

        remote = api.remote(num_cpus=0)(Node if methods == "plain" else AsyncNode)
        root = remote.remote(2)
        assert api.get(root.count.remote()) == 7
        child = api.get(root.list_children.remote())[0]
        assert api.get(child.count.remote()) == 3

    def test_actor_method_errors_leave_it_alive(self) -> None:
        counter = api.remote(programs.Counter).remote()
        with pytest.raises(KeyError, match="missing"):
            api.get(counter.fail.remote())
        assert api.get(counter.add.remote()) == 1

    def test_handles_travel(self) -> None:
        counter = api.remote(programs.Counter).remote()

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
        counter = api.remote(programs.Counter).remote()
        api.get(counter.add.remote())
        api.kill(counter)

        def fails() -> bool:
            try:
                return api.get(counter.add.remote()) is None
            except exceptions.ActorDiedError as error:
                return "killed by `kill`" in str(error)

        programs.wait_until(fails)

    @pytest.mark.needs("immediate_kill")
    def test_killed_actor_answers_no_more(self) -> None:
        counter = api.remote(programs.Counter).remote()
        api.kill(counter)
        with pytest.raises(exceptions.ActorDiedError, match="killed by `kill`"):
            api.get(counter.add.remote())

    def test_actor_ends_with_its_last_handle(self) -> None:
        counter = api.remote(programs.Counter).remote()
        ref = counter.add.remote()
        del counter
        assert api.get(ref) == 1
        deadline = time.monotonic() + 5
        while session.get_engine().view.statistics()["actors"] and time.monotonic() < deadline:
            threading.Event().wait(0.005)
        assert session.get_engine().view.statistics()["actors"] == 0

    def test_named_actors_are_found_until_they_end(self) -> None:
        cls = api.remote(programs.Counter)
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


class ActorLifeContract:
    """The lives of actors in every engine. Part of `EngineContract`."""

    def test_every_actor_has_the_special_methods(self) -> None:
        counter = api.remote(programs.Counter).remote(5)
        assert api.get(counter.__ray_ready__.remote()) is True
        assert api.get(counter.__ray_call__.remote(lambda self, x: self.value + x, 2)) == 7

    def test_terminated_actor_runs_its_hook_and_what_was_asked_before(self, tmp_path: Path) -> None:
        class Polite:
            def __init__(self, path: Path) -> None:
                self.path = path

            def ping(self) -> str:
                return "pong"

            def __ray_shutdown__(self) -> None:
                self.path.write_text("bye")

        polite = api.remote(Polite).remote(tmp_path / "hook")
        before = polite.ping.remote()
        with pytest.raises(exceptions.ActorDiedError, match="exit_actor"):
            api.get(polite.__ray_terminate__.remote())
        assert api.get(before) == "pong"
        programs.wait_until((tmp_path / "hook").exists)

    def test_exit_actor_ends_it_past_except_exception(self) -> None:
        class Quitter:
            def quit(self) -> None:
                with contextlib.suppress(Exception):
                    actor.exit_actor()

        quitter = api.remote(max_restarts=5)(Quitter).remote()
        with pytest.raises(exceptions.ActorDiedError, match="ended itself"):
            api.get(quitter.quit.remote())
        with pytest.raises(exceptions.ActorDiedError, match="ended itself"):
            api.get(quitter.quit.remote())

    def test_exit_actor_outside_an_actor(self) -> None:
        with pytest.raises(TypeError, match="inside a method of an actor"):
            actor.exit_actor()

    def test_killed_actor_is_built_again_if_asked(self) -> None:
        counter = api.remote(programs.Counter).options(max_restarts=1).remote(10)
        assert api.get(counter.add.remote()) == 11
        api.kill(counter, no_restart=False)
        programs.wait_until(lambda: programs.try_add(counter) == 11)
        api.kill(counter, no_restart=True)
        programs.wait_until(lambda: programs.is_dead(counter))
        with pytest.raises(exceptions.ActorDiedError, match="killed"):
            api.get(counter.add.remote())

    def test_pending_calls_are_limited(self) -> None:
        gate = api.remote(programs.AsyncGate).options(max_pending_calls=2).remote()
        waiting = [gate.wait.remote(), gate.wait.remote()]
        with pytest.raises(exceptions.PendingCallsLimitExceeded, match="max_pending_calls=2"):
            gate.open.remote()
        del waiting

    def test_concurrency_groups_do_not_hold_each_other_up(self) -> None:
        class Mixed:
            async def wait(self) -> str:
                self.event = asyncio.Event()
                await self.event.wait()
                return "done"

            @actor.method(concurrency_group="io")
            async def ping(self) -> str:
                return "pong"

        mixed = api.remote(concurrency_groups={"io": 1})(Mixed).remote()
        waiting = mixed.wait.remote()
        assert api.get(mixed.ping.remote()) == "pong"
        assert api.get(mixed.ping.options(concurrency_group="io").remote()) == "pong"
        del waiting

    def test_call_that_waits_for_an_argument_is_overtaken_only_if_allowed(self) -> None:
        gate = api.remote(programs.AsyncGate).remote()
        late = gate.wait.remote()
        quick = api.remote(programs.Recorder).options(allow_out_of_order_execution=True).remote()
        first, second = quick.note.remote(late), quick.note.remote("second")
        assert api.get(second) == ["second"]
        api.get(gate.open.remote())
        assert api.get(first) == ["second", "through"]

    def test_retry_exceptions_of_methods(self) -> None:
        class Flaky:
            def __init__(self) -> None:
                self.tries = 0

            @actor.method(retry_exceptions=[ValueError])
            def work(self) -> int:
                self.tries += 1
                if self.tries < 3:
                    raise ValueError(self.tries)
                return self.tries

        assert api.get(api.remote(max_task_retries=2)(Flaky).remote().work.remote()) == 3

    def test_retry_exceptions_of_methods_with_a_constructor_of_their_own(self) -> None:
        class CodeError(Exception):
            def __init__(self, code: int, why: str) -> None:
                super().__init__(f"{code}: {why}")

        class Flaky:
            def __init__(self) -> None:
                self.tries = 0

            @actor.method(retry_exceptions=[CodeError])
            def work(self, needed: int) -> int:
                self.tries += 1
                if self.tries < needed:
                    raise CodeError(self.tries, "not yet")
                return self.tries

        flaky = api.remote(max_task_retries=2)(Flaky).remote()
        assert api.get(flaky.work.remote(3)) == 3
        with pytest.raises(CodeError, match="6: not yet"):
            api.get(flaky.work.remote(100))
        assert api.get(flaky.work.options(retry_exceptions=[KeyError]).remote(0)) == 7

    def test_get_if_exists(self) -> None:
        made = [api.remote(programs.Counter).options(name="shared", get_if_exists=True).remote(3) for _ in range(3)]
        assert len(set(made)) == 1
        assert api.get([one.add.remote() for one in made]) == [4, 5, 6]

    def test_current_actor(self) -> None:
        class Selfish:
            def me(self) -> object:
                return api.get_runtime_context().current_actor

            def name(self) -> Any:
                return api.get_runtime_context().get_actor_name()

        selfish = api.remote(Selfish).options(name="me").remote()
        assert api.get(selfish.me.remote()) == selfish
        assert api.get(selfish.name.remote()) == "me"
