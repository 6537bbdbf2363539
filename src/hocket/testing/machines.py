"""Machines made of namespaces: Linux processes with a network, a process table and a shared memory of their own.

In tests they stand for other machines of a cluster. Two machines share only this machine's files, its clock, and a
bridge between their networks. A machine can lose its power: its cable is cut first, so no peer learns that a connection
has ended.

Needs root, and Debian's ``iproute2``; see `can_have_machines`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import IO, Final, Self

import psutil

from hocket.testing import machine_init

_TRIES: Final = 20
"""The number of networks to try, because some may be taken."""

_MOST_MACHINES: Final = 250


@functools.cache
def can_have_machines() -> bool:
    """Return whether machines can be made here."""
    if shutil.which("ip") is None:
        return False
    try:
        with Network() as network:
            machine = network.start_machine(["cat"], os.environ)
            machine.stdin.write(b"?")
            machine.stdin.flush()
            is_up = machine.stdout.read(1) == b"?"
            machine.end()
    except OSError:
        return False
    return is_up


def cut_own_cable() -> None:
    """Cut the cable of this process's machine, if it is on a machine made of namespaces."""
    if os.environ.get(machine_init.VARIABLE):
        _ip("link", "set", "eth0", "down")


class Network:
    """A bridge that connects machines, including this one.

    A context manager. Its machines must end before it does.
    """

    def __init__(self) -> None:
        self._name = f"hk{secrets.token_hex(4)}"
        self._prefix = ""
        self._count = 1

    def __enter__(self) -> Self:
        _ip("link", "add", self._name, "type", "bridge")
        try:
            for _ in range(_TRIES):
                self._prefix = f"10.{random.randrange(1, 255)}.{random.randrange(255)}"  # noqa: S311 (no secret)
                if not _is_taken(self._prefix):
                    break
            _ip("addr", "add", f"{self._prefix}.1/24", "dev", self._name)
            _ip("link", "set", self._name, "up")
        except BaseException:
            _ip("link", "del", self._name)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _ip("link", "del", self._name)

    def start_machine(self, command: Sequence[str], environment: Mapping[str, str]) -> Machine:
        """Start a machine, with the bridge as its only way to others.

        Args:
            command: The command of process 1 on the machine. When it ends, all other processes are killed.
            environment: The command's environment variables.

        Raises:
            OSError: The machine could not be made. The text says what failed.
        """
        if self._count > _MOST_MACHINES:
            raise OSError(f"a network has room for {_MOST_MACHINES} machines, and they are used up")
        self._count += 1
        number = self._count
        space, cable = f"{self._name}-{number}", f"{self._name[2:]}-{number}"
        with contextlib.ExitStack() as stack:
            _ip("netns", "add", space)
            stack.callback(_ip, "netns", "del", space)
            _ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", space)
            _ip("link", "set", cable, "master", self._name, "up")
            _ip("-n", space, "addr", "add", f"{self._prefix}.{number}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _ip("-n", space, "link", "set", device, "up")
            _ip("-n", space, "route", "add", "default", "via", f"{self._prefix}.1")
            start = ["ip", "netns", "exec", space, sys.executable, "-I", "-S", machine_init.__file__]
            process = subprocess.Popen(
                [*start, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**environment, machine_init.VARIABLE: space},
                cwd="/",
                start_new_session=True,  # so that Ctrl-C ends only the driver
            )
            return Machine(f"{self._prefix}.{number}", process, cable, stack.pop_all())


class Machine:
    """A machine. Made by `Network.start_machine`; `end` must be called."""

    def __init__(self, address: str, process: subprocess.Popen[bytes], cable: str, rest: contextlib.ExitStack) -> None:
        #: The machine's IP address.
        self.address = address
        self._process = process
        self._cable = cable
        self._rest = rest

    @property
    def stdin(self) -> IO[bytes]:
        """The standard input of the machine's process 1."""
        assert self._process.stdin is not None, "it was asked for"
        return self._process.stdin

    @property
    def stdout(self) -> IO[bytes]:
        """The standard output of the machine's process 1."""
        assert self._process.stdout is not None, "it was asked for"
        return self._process.stdout

    def list_pids(self) -> list[int]:
        """Return the machine's processes, with their ids outside of the machine."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return [child.pid for child in psutil.Process(self._process.pid).children(recursive=True)]
        return []

    def is_on(self) -> bool:
        """Return whether the machine's process 1 runs."""
        return self._process.poll() is None

    def cut(self) -> None:
        """Cut the machine's cable, in both directions."""
        _ip("link", "set", self._cable, "down")

    def kill(self) -> None:
        """Cut the machine's power: the cable is dead, and all processes are gone."""
        if self.is_on():
            self.cut()
            for pid in self.list_pids()[:1]:  # with process 1 the kernel kills all
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.wait()

    def end(self, patience_s: float = 20.0) -> None:
        """End process 1 by closing its standard input, and remove the machine."""
        self.stdin.close()
        try:
            self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self.kill()
        self.stdout.close()
        self._rest.close()


def _is_taken(prefix: str) -> bool:
    return any(
        address.address.startswith(f"{prefix}.") for found in psutil.net_if_addrs().values() for address in found
    )


def _ip(*arguments: object) -> None:
    done = subprocess.run(["ip", *map(str, arguments)], capture_output=True, text=True, check=False)  # noqa: S607 (wherever it is)
    if done.returncode:
        raise OSError(f"`ip {' '.join(map(str, arguments))}` failed: {done.stderr.strip()}")
