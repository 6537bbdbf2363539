"""Whatever bytes arrive on a socket of ours: the driver lives, nothing is executed, the sender ends, the session
goes on."""

from __future__ import annotations

import contextlib
import marshal
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

import hocket
from hocket.engine.local import channel, messages
from hocket.testing import Leftovers

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.complex_numbers()
    | st.binary(max_size=30)
    | st.text(max_size=10),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)
"""Everything that marshal can carry, but code."""

numbers = st.sampled_from(sorted(messages.declared))

small_ids = st.integers(0, 12) | st.sampled_from([-1, 1 << 40, (1 << 40) + 1, 2**63])
"""Ids that are likely to mean something to the driver."""

payloads = st.one_of(
    st.none(),
    st.tuples(st.integers(0, 4), st.binary(max_size=5)),
    st.tuples(st.just(2), st.binary(max_size=5), small_ids, st.integers(0, 100), plain),
    plain,
)

junk_messages = st.builds(
    lambda number, rest: (number, *rest), numbers | st.integers(), st.lists(small_ids | payloads | plain, max_size=9)
)
"""Tuples that begin like messages of ours."""


def frame(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "little") + payload


def code_frame() -> bytes:
    return frame(marshal.dumps([(1, compile("import os; os._exit(77)", "x", "exec"))]))


junk = st.one_of(
    st.binary(max_size=200),
    st.binary(max_size=200).map(frame),
    plain.map(lambda value: frame(marshal.dumps(value))),
    st.lists(junk_messages, max_size=3).map(lambda value: frame(marshal.dumps(value))),
    st.lists(st.tuples(plain) | junk_messages, max_size=3).map(lambda value: frame(marshal.dumps(value))[:-1]),
)


def has_huge_announcement(data: bytes) -> bool:
    """Tell whether a frame that begins like ours may announce a container beyond a megabyte further in: that is tested
    with a limit on memory.
    """
    if not any(
        byte & 0x7F == ord("[") and data[at + 3 : at + 5] == b"\0\0" and data[at + 5 : at + 6] in (b")", b"\xa9")
        for at, byte in enumerate(data)
    ):
        return False
    kinds = {ord(kind) | flag for kind in "([<>silutaAz" for flag in (0, 0x80)}
    return any(byte in kinds and data[at + 3 : at + 5].strip(b"\0") for at, byte in enumerate(data))


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, channel.Channel]]:
    ours, theirs = socket.socketpair()
    end = channel.Channel(theirs)
    yield ours, end
    ours.close()
    end.close()


@hypothesis.settings(
    max_examples=300, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture], deadline=None
)
@hypothesis.given(data=st.one_of(junk, st.just(code_frame())))
def test_decoder_builds_plain_data_or_refuses(data: bytes) -> None:
    hypothesis.assume(not has_huge_announcement(data))
    ours, theirs = socket.socketpair()
    end = channel.Channel(theirs)
    try:
        ours.sendall(data)
        ours.close()
        received: list[channel.Message] | None = []
        while received is not None:
            with contextlib.suppress(channel.FrameError):
                received = end.receive()
                assert received is None or all(type(message) is tuple and message for message in received)
                continue
            break
    finally:
        end.close()


@pytest.mark.parametrize("kind", [b"(", b"[", b"\xa8", b"\xdb", b"<", b">", b"s", b"u", b"l", b"[\xff\0\0\0("])
def test_announcement_at_the_beginning_is_refused_before_it_is_believed(
    pair: tuple[socket.socket, channel.Channel], kind: bytes
) -> None:
    ours, end = pair
    ours.sendall(frame(kind + (2**31 - 1).to_bytes(4, "little") + b"i"))
    with pytest.raises(channel.FrameError, match="a frame does not begin with a list of messages"):
        end.receive()


@pytest.mark.slow
def test_announcement_of_more_than_the_memory_is_refused() -> None:
    """Further in, only the memory itself refuses."""
    program = """
import resource, socket, sys
from hocket.engine.local import channel
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
for payload in map(bytes.fromhex, sys.argv[1:]):
    ours, theirs = socket.socketpair()
    end = channel.Channel(theirs)
    ours.sendall(len(payload).to_bytes(4, "little") + payload)
    try:
        end.receive()
    except channel.FrameError as error:
        print("refused" if "plain data" in str(error) else error)
"""
    beginning = b"[" + (1).to_bytes(4, "little") + b"(" + (1).to_bytes(4, "little")
    payloads = [
        beginning + kind + (2**31 - 1).to_bytes(4, "little") + b"i"
        for kind in (b"(", b"[", b"<", b">", b"s", b"u", b"l")
    ]
    done = subprocess.run(
        [sys.executable, "-c", program, *[payload.hex() for payload in payloads]],
        capture_output=True,
        text=True,
        check=False,
        timeout=40,
    )
    assert (done.stdout, done.returncode) == ("refused\n" * len(payloads), 0), done.stderr


@pytest.mark.parametrize("junk_bytes", [b"\xff\xff\xff\xff", frame(b""), frame(b"0"), frame(marshal.dumps([()]))])
def test_short_junk_is_refused(pair: tuple[socket.socket, channel.Channel], junk_bytes: bytes) -> None:
    ours, end = pair
    ours.sendall(junk_bytes)
    with pytest.raises(channel.FrameError, match="frame"):
        end.receive()


# --- the sockets of a session -----------------------------------------------------------------------------------------


@hocket.remote(max_retries=0)
def send_to_hub(data: bytes) -> str:
    """Speak on this worker's own socket, as a worker gone mad would, and be at work when the driver has heard it."""
    from hocket.engine import contract

    engine: Any = contract.get_current_engine()
    with engine.lock:
        engine.outbox.flush()
        with contextlib.suppress(OSError):
            engine.channel.sock.setblocking(True)
            engine.channel.sock.sendall(data)
            engine.channel.sock.setblocking(False)
    threading.Event().wait(60)  # the result of a task that is over counts, whatever becomes of its worker
    return "sent"


@hocket.remote
def add(x: int, y: int) -> int:
    return x + y


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_junk_from_a_worker_ends_the_worker_and_not_the_session() -> None:
    before = Leftovers.look()
    marker = os.getpid()

    @hypothesis.settings(max_examples=50, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
    @hypothesis.given(data=st.one_of(junk, st.just(code_frame())))
    def check(data: bytes) -> None:
        hypothesis.assume(not has_huge_announcement(data))
        ref = send_to_hub.remote(data)
        # Some junk is an unfinished frame, which keeps the worker's answer back: then only the kill below ends the
        # wait.
        ready, _ = hocket.wait([ref], timeout=0.2)
        if not ready:
            hocket.cancel(ref, force=True)
        with contextlib.suppress(hocket.exceptions.HocketError):
            hocket.get(ref, timeout=20)
        assert hocket.get(add.remote(1, 2), timeout=20) == 3

    with hocket.init(num_cpus=1):
        check()
        guardian_pid = hocket.core.session.get_engine().view.statistics()["guardian_pid"]
        assert guardian_pid is not None
        os.kill(guardian_pid, 0)
    assert os.getpid() == marker
    assert before.list_new() == []


@pytest.mark.slow
def test_code_in_a_frame_is_not_executed(session: hocket.SessionContext) -> None:
    ref = send_to_hub.remote(code_frame())
    with contextlib.suppress(hocket.exceptions.WorkerCrashedError):
        hocket.get(ref, timeout=20)
    assert hocket.get(add.remote(1, 2), timeout=20) == 3


@pytest.mark.slow
def test_frame_error_is_recorded_with_its_worker(session: hocket.SessionContext) -> None:
    ref = send_to_hub.remote(frame(b"this is no frame"))
    with pytest.raises(hocket.exceptions.WorkerCrashedError, match="killed by signal 9"):
        hocket.get(ref, timeout=20)
    assert [error for error in hocket.error_info() if error.error_type == "FrameError"] != []


@pytest.mark.slow
@hypothesis.settings(max_examples=12, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
@hypothesis.given(data=junk)
def test_junk_to_a_worker_ends_the_worker(data: bytes) -> None:
    """A worker that hears nonsense ends; it does not act on it, and its parent is told."""
    hypothesis.assume(not has_huge_announcement(data))
    pid, ours = _fork_worker()
    try:
        ours.sendall(data)
        ours.close()
        _, status = os.waitpid(pid, 0)
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        raise
    assert os.waitstatus_to_exitcode(status) in (0, 1), "it left by itself: the socket's end, or an error"


def _fork_worker() -> tuple[int, socket.socket]:
    """Start a worker process without a guardian; return its pid and the driver's end of its socket."""
    ours, theirs = socket.socketpair()
    program = f"""
import os
from hocket.engine.local import journal, messages, worker
status = os.memfd_create("status"); os.ftruncate(status, messages.STATUS_BYTES)
page = os.memfd_create("page"); os.ftruncate(page, journal.PAGE_BYTES)
os._exit(worker.main(1, {theirs.fileno()}, page, status, os.memfd_create("stack"), None))
"""
    pid = os.posix_spawn(
        sys.executable,
        [sys.executable, "-c", program],
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_DUP2, theirs.fileno(), theirs.fileno()),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
        ],
    )
    theirs.close()
    return pid, ours


@pytest.mark.slow
def test_worker_that_hears_no_junk_ends_in_peace() -> None:
    """Else the test above would be content with a worker that never came up."""
    pid, ours = _fork_worker()
    ours.close()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.slow
@hypothesis.settings(max_examples=12, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
@hypothesis.given(data=junk)
def test_junk_to_the_guardian_ends_it(data: bytes) -> None:
    """The guardian hears its driver only; if that speaks nonsense, the session is over and nothing is left."""
    hypothesis.assume(not has_huge_announcement(data))
    ours, theirs = socket.socketpair()
    program = f"""
import os
from hocket.engine.local import guardian, messages
status = os.memfd_create("status"); os.ftruncate(status, messages.STATUS_BYTES)
guardian.main({theirs.fileno()}, status, {os.getpid()})
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        pass_fds=(theirs.fileno(),),
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
    )
    theirs.close()
    with contextlib.suppress(BrokenPipeError):
        ours.sendall(data)
    ours.close()
    try:
        assert process.wait(30) in (0, 1)
    finally:
        process.kill()
        process.wait()


# --- well-formed lies -------------------------------------------------------------------------------------------------

LIES: dict[str, Any] = {
    "done with values that cannot be counted": lambda own, new: [(messages.DONE, own, 0.1, [((0, b"x"), 5)], 0.0)],
    "done in a time that is no number": lambda own, new: [(messages.DONE, own, "x", [((0, b"x"), ())], 0.0)],
    "done without values": lambda own, new: [(messages.DONE, own, 0.1, None, 0.0)],
    "done with an empty payload": lambda own, new: [(messages.DONE, own, 0.1, [((), ())], 0.0)],
    "done with a segment that did not come": lambda own, new: [
        (messages.DONE, own, 0.1, [((2, b"", own, 9, ()), ())], 0.0)
    ],
    "failed with nonsense": lambda own, new: [(messages.FAILED, own, 5, 6, 7, "x", None)],
    "put in place of its own result": lambda own, new: [(messages.PUT, own, (0, b"x"), ())],
    "put under another worker's id": lambda own, new: [(messages.PUT, 77 << 40, (0, b"x"), ())],
    "put without a payload": lambda own, new: [(messages.PUT, new, (), ())],
    "put of no references": lambda own, new: [(messages.PUT, new, (0, b"x"), 7)],
    "submission of an unknown function": lambda own, new: [(messages.SUBMIT, new, b"?", None, (), (), b"", 0)],
    "call of an unknown actor": lambda own, new: [(messages.SUBMIT_CALL, new, 10**9, "m", None, (), (), 1, "m", 0)],
    "drop of nothing countable": lambda own, new: [(messages.DROP, own, "x")],
    "hand back of what is no list": lambda own, new: [(messages.BACK, 5)],
    "block with what is no list": lambda own, new: [(messages.BLOCK, 5)],
    "a question that is no pickle": lambda own, new: [(messages.ASK, new, "statistics", b"junk"), (99,)],
    "a question for a private method": lambda own, new: [(messages.ASK, new, "_fail_all", b"junk"), (99,)],
    "a driver's own message": lambda own, new: [(messages.RUN, own)],
    "a guardian's message": lambda own, new: [(messages.DIED, 1, 2, 3, 4, 5, 6, 7, 8)],
}
"""What a worker might say in a frame that is well formed, made from its task's id and a new one."""


@hocket.remote(max_retries=0)
def lie(name: str) -> str:
    from hocket.engine import contract

    engine: Any = contract.get_current_engine()
    with engine.lock:
        for message in LIES[name](engine.duty.running.task_id, next(engine.duty.ids)):
            engine.channel.post(message)
        engine.outbox.flush()
    threading.Event().wait(60)  # the result of a task that is over counts, whatever becomes of its worker
    return "said"


@pytest.mark.slow
@pytest.mark.parametrize("name", LIES)
def test_a_lie_ends_its_worker_and_every_wait(session: hocket.SessionContext, name: str) -> None:
    kept = hocket.put("kept")
    with pytest.raises(hocket.exceptions.WorkerCrashedError, match=r"killed by signal 9 \(SIGKILL\)"):
        hocket.get(lie.remote(name), timeout=20)
    assert hocket.get([add.remote(1, 2), kept], timeout=20) == [3, "kept"]
    engine: Any = hocket.core.session.get_engine()
    engine.kernel.validate_state()
