"""`breakpoint()` in tasks and actors reaches the terminal that the driver was started from."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

import hocket

pytestmark = pytest.mark.about_local("the prompt at a breakpoint of a worker")

PROGRAM = """
import hocket
hocket.init(num_cpus=2)

@hocket.remote
def double(x):
    y = 2 * x
    breakpoint()
    return y

@hocket.remote
class Counter:
    def add(self, n):
        total = n + 1
        breakpoint()
        return total

{main}
"""


class Terminal:
    """A program on a pseudo terminal of its own, which is not this test's."""

    def __init__(self, main: str, **environment: str) -> None:
        self._master, slave = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM.format(main=main)],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**os.environ, "PYTHONBREAKPOINT": "", **environment},
            start_new_session=True,
        )
        os.close(slave)
        self.text = ""

    def read_until(self, wanted: str, limit_s: float = 30.0) -> str:
        """Return what came up to and with the wanted text."""
        deadline = time.monotonic() + limit_s
        while wanted not in self.text:
            left = deadline - time.monotonic()
            assert left > 0, f"{wanted!r} did not come; there was {self.text!r}"
            if select.select([self._master], [], [], left)[0]:
                try:
                    self.text += os.read(self._master, 65536).decode()
                except OSError:  # the other end is closed
                    raise AssertionError(f"{wanted!r} did not come before the end; there was {self.text!r}") from None
        found, _, self.text = self.text.partition(wanted)
        return found + wanted

    def write(self, line: str) -> None:
        """Type a line."""
        os.write(self._master, f"{line}\n".encode())

    def close(self) -> None:
        """End the program."""
        self._process.kill()
        self._process.wait()
        os.close(self._master)


@pytest.fixture
def start_terminal() -> Iterator[type[Terminal]]:
    started: list[Terminal] = []

    class Kept(Terminal):
        def __init__(self, main: str, **environment: str) -> None:
            super().__init__(main, **environment)
            started.append(self)

    yield Kept
    for terminal in started:
        terminal.close()


@pytest.mark.slow
def test_task_stops_shows_and_continues(start_terminal: type[Terminal]) -> None:
    terminal = start_terminal("print('result', hocket.get(double.remote(21)))")
    terminal.read_until("(`double`, pid ")
    terminal.write("p ('y is', y)")
    terminal.read_until("('y is', 42)")
    terminal.write("c")
    terminal.read_until("result 42")


@pytest.mark.slow
def test_actor_stops_shows_and_continues(start_terminal: type[Terminal]) -> None:
    terminal = start_terminal("print('result', hocket.get(Counter.remote().add.remote(6)))")
    terminal.read_until("(`Counter.add`, pid ")
    terminal.write("p ('total is', total)")
    terminal.read_until("('total is', 7)")
    terminal.write("c")
    terminal.read_until("result 7")


@pytest.mark.slow
def test_stepping_off_the_end_goes_on(start_terminal: type[Terminal]) -> None:
    terminal = start_terminal("print('result', hocket.get([double.remote(21), double.remote(4)]))")
    for _ in range(2):  # the second waits until the first is done with the terminal
        terminal.read_until("(`double`, pid ")
        if sys.version_info >= (3, 13):  # it stops in the line of `breakpoint()`, and not behind it
            terminal.write("n")
            terminal.read_until("(`double`, pid ")
        terminal.write("n")
        terminal.read_until("--Return--")
        terminal.read_until("(`double`, pid ")
        terminal.write("n")
    terminal.read_until("result [42, 8]")


@pytest.mark.slow
def test_two_workers_take_turns(start_terminal: type[Terminal]) -> None:
    terminal = start_terminal("print('result', hocket.get([double.remote(1), double.remote(2)]))")
    first = terminal.read_until("(`double`, pid ") + terminal.read_until(") ")
    terminal.write("p 'still', y")
    between = terminal.read_until("('still', ") + terminal.read_until(") ")
    assert "double`, pid" not in between.partition("('still', ")[0], "only one worker prompts"
    assert "double()" in first
    terminal.write("c")
    terminal.read_until("(`double`, pid ")
    terminal.write("c")
    terminal.read_until("result [2, 4]")


@pytest.mark.slow
def test_quit_fails_the_task_and_nothing_else(start_terminal: type[Terminal]) -> None:
    main = """
try:
    hocket.get(double.remote(1))
except hocket.exceptions.TaskError as error:
    print("failed with", type(error.cause).__name__)
print("next", hocket.get(hocket.remote(lambda: 5).remote()))
"""
    terminal = start_terminal(main)
    terminal.read_until("(`double`, pid ")
    terminal.write("q")
    terminal.read_until("failed with BdbQuit")
    terminal.read_until("next 5")


@pytest.mark.slow
def test_environment_switches_breakpoints_off(start_terminal: type[Terminal]) -> None:
    terminal = start_terminal("print('result', hocket.get(double.remote(21)))", PYTHONBREAKPOINT="0")
    assert "pid" not in terminal.read_until("result 42")


@pytest.mark.slow
def test_no_terminal_is_explained() -> None:
    program = PROGRAM.format(main="hocket.get(double.remote(21))")
    done = subprocess.run(
        [sys.executable, "-c", program],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONBREAKPOINT": ""},
        timeout=40,
    )
    assert done.returncode == 1
    assert "breakpoint() in `double` found no terminal: the driver's stdin is not a terminal" in done.stderr
    assert 'hocket.init(engine="inprocess")' in done.stderr


def test_inprocess_engine_uses_the_drivers_own_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(sys, "breakpointhook", lambda: seen.append(sys._getframe(1).f_locals["y"]))

    @hocket.remote
    def double(x: int) -> int:
        y = 2 * x
        breakpoint()  # noqa: T100
        return y

    with hocket.init(num_cpus=1, engine="inprocess"):
        assert hocket.get(double.remote(4)) == 8
    assert seen == [8]
