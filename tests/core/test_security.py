"""Closed by default: no listener, no stranger on a socket, no look at other users' sessions."""

from __future__ import annotations

import array
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

import hocket
from hocket.engine.local import channel, endpoint
from hocket.observe import sessions
from tests.conftest import RunScript

pytestmark = pytest.mark.about_local("its processes and their sockets")

needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None,
    reason="only root may start processes of other users, and setpriv is what starts them",
)

USERS = (20001, 20002, 20003)
"""Users that need not exist by name."""


PROBE = "import subprocess, sys, hocket; subprocess.run([sys.executable, '-c', ''], check=True)"


def build_command(user: int) -> list[str]:
    """Return what starts this interpreter as another user.

    Where the interpreter lies in a folder that only root may enter, the user is allowed to read everything
    (CAP_DAC_READ_SEARCH). That makes a stranger stronger than strangers are, so what is refused to it is refused to
    all.
    """
    plain = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
    strong = [*plain, "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    for prefix in (plain, strong):
        command = [*prefix, sys.executable]
        if subprocess.run([*command, "-c", PROBE], cwd="/", capture_output=True, check=False).returncode == 0:
            return command
    pytest.skip("another user can start this interpreter neither plainly nor with CAP_DAC_READ_SEARCH")


def start_as(user: int, source: str, *arguments: str, pass_fds: tuple[int, ...] = ()) -> subprocess.Popen[str]:
    """Start a Python program as another user."""
    return subprocess.Popen(
        [*build_command(user), "-c", source, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        pass_fds=pass_fds,
        cwd="/",
        env={**os.environ, "HOME": "/"},
    )


def list_session_pids() -> set[int]:
    pids = {os.getpid()}
    pids |= {child.pid for child in psutil.Process().children(recursive=True)}
    return pids


def read_socket_inodes(pids: set[int]) -> set[str]:
    inodes = set()
    for pid in pids:
        for path in Path(f"/proc/{pid}/fd").iterdir():
            try:
                target = path.readlink().as_posix()
            except FileNotFoundError:
                continue
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    return inodes


def list_listening_inodes() -> set[str]:
    """Return the inodes of all listening sockets of this network namespace, from the kernel's tables."""
    found = set()
    for name in ("tcp", "tcp6"):
        path = Path("/proc/net", name)
        for line in path.read_text().splitlines()[1:] if path.exists() else ():
            fields = line.split()
            if fields[3] == "0A":  # TCP_LISTEN
                found.add(fields[9])
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        if int(fields[3], 16) & 0x10000:  # SO_ACCEPTCON
            found.add(fields[6])
    return found


def test_no_process_of_a_session_listens(session: hocket.SessionContext) -> None:
    @hocket.remote
    class Actor:
        def get_pid(self) -> int:
            return os.getpid()

    actors: Any = Actor
    actor = actors.remote()
    pids = list_session_pids() | {hocket.get(actor.get_pid.remote())}
    assert len(pids) >= 3, "driver, guardian, worker"
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind("\0hocket-test-of-the-test")
        listener.listen()
        ours = str(os.fstat(listener.fileno()).st_ino)
        assert read_socket_inodes(list_session_pids() | pids) & list_listening_inodes() == {ours}, (
            "the only listener is the one that this test opened to see that it would be found"
        )
    finally:
        listener.close()


def test_ports_in_use_are_none(session: hocket.SessionContext) -> None:
    hocket.get(hocket.remote(os.getpid).remote())
    opened = [
        connection
        for pid in list_session_pids()
        for connection in psutil.Process(pid).net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert opened == []


# --- peers ------------------------------------------------------------------------------------------------------------


def test_socket_that_is_no_unix_socket_is_refused() -> None:
    with (
        socket.socket(socket.AF_INET) as sock,
        pytest.raises(channel.PeerError, match=r"talks over Unix socket pairs only, but descriptor .* is .*AF_INET"),
    ):
        channel.Channel(sock)


def test_own_pair_is_accepted() -> None:
    ours, theirs = socket.socketpair()
    ends = channel.Channel(ours), channel.Channel(theirs)
    for end in ends:
        end.close()


@needs_root
def test_socket_of_another_user_is_refused() -> None:
    ours, theirs = socket.socketpair()
    program = """
import array, socket, sys
link = socket.socket(fileno=int(sys.argv[1]))
one, other = socket.socketpair()
link.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [one.fileno()]))])
link.recv(1)
"""
    process = start_as(USERS[0], program, str(theirs.fileno()), pass_fds=(theirs.fileno(),))
    try:
        _, ancillary, _, _ = ours.recvmsg(1, socket.CMSG_SPACE(4))
        (fd,) = array.array("i", ancillary[0][2])
        with (
            socket.socket(fileno=fd) as sock,
            pytest.raises(channel.PeerError, match=rf"belongs to user {USERS[0]} .*, and this process to user 0"),
        ):
            channel.Channel(sock)
        ours.sendall(b"x")
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.communicate()
        ours.close()
        theirs.close()


# --- users ------------------------------------------------------------------------------------------------------------

DRIVER = """
import os, sys
import hocket
hocket.init(num_cpus=1)

@hocket.remote
class Secret:
    def get_owner(self):
        return os.getuid()

secret = Secret.options(name="secret").remote()
print(hocket.get(secret.get_owner.remote()), flush=True)
sys.stdin.readline()
"""

LOOK = """
import json, os, sys
from hocket.cli import main
from hocket.engine.local import endpoint
from hocket.observe import sessions
refused = []
for pid in map(int, sys.argv[1:]):
    try:
        endpoint.ask(pid, 2.0)
        refused.append(False)
    except PermissionError:
        refused.append(True)
print(json.dumps({"refused": refused, "sessions": [
    [found.driver_pid, sessions.look(found, 5.0)["snapshot"] is not None] for found in endpoint.list_sessions()
]}))
"""


@needs_root
@pytest.mark.long
@pytest.mark.slow
def test_three_users_at_once_do_not_see_each_other() -> None:
    drivers = [start_as(user, DRIVER) for user in USERS]
    lookers: list[subprocess.Popen[str]] = []
    try:
        for user, driver in zip(USERS, drivers, strict=True):
            assert driver.stdout is not None
            line = driver.stdout.readline()
            assert line == f"{user}\n", driver.stderr.read() if driver.stderr and not line else line
        pids = [driver.pid for driver in drivers]
        lookers = [start_as(user, LOOK, *map(str, pids)) for user in USERS]
        for number, looker in enumerate(lookers):
            out, err = looker.communicate(timeout=40)
            assert looker.returncode == 0, err
            seen = json.loads(out)
            assert seen["sessions"] == [[pids[number], True]], "one's own session, and no other"
            assert seen["refused"] == [other != number for other in range(3)]
        for driver in drivers:
            out, err = driver.communicate("go on\n", timeout=40)
            assert (out, err, driver.returncode) == ("", "", 0)
    finally:
        for process in (*drivers, *lookers):
            process.kill()
            process.communicate()


def test_fork_of_the_driver_is_no_session_of_its_own(session: hocket.SessionContext) -> None:
    hocket.get(hocket.remote(os.getpid).remote())
    ready_read, ready_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(ready_read)
        os.write(ready_write, b"x")
        signal.pause()
        os._exit(0)
    try:
        os.close(ready_write)
        os.read(ready_read, 1)
        assert endpoint.ask(os.getpid(), 5.0)["driver_pid"] == os.getpid()
        with pytest.raises(LookupError, match=f"the process {pid} has no Hocket session"):
            endpoint.ask(pid, 1.0)
    finally:
        os.close(ready_read)
        os.kill(pid, 9)
        os.waitpid(pid, 0)


def test_driver_that_does_not_answer_is_said_to_be_silent(start_script: RunScript) -> None:
    driver = start_script(
        "import hocket, signal\nhocket.get(hocket.remote(abs).remote(-1))\nprint('x', flush=True)\nsignal.pause()"
    )
    assert driver.stdout is not None
    driver.stdout.readline()
    found = next(found for found in endpoint.list_sessions() if found.driver_pid == driver.pid)
    driver.send_signal(signal.SIGSTOP)
    try:
        seen = sessions.look(found, 0.05)
    finally:
        driver.send_signal(signal.SIGCONT)
    assert seen["snapshot"] is None
    assert seen["problem"] == f"the driver (pid {driver.pid}) did not answer within 0.05 s"
    assert {one["role"] for one in seen["processes"]} >= {"driver", "guardian", "worker"}
