"""The parent of all ranks: starts them, relays their output, starts them again after a failure, and ends everything.

The agent is a fresh, single-threaded interpreter in a session of its own: a Ctrl-C of the terminal goes to the front,
which passes it on. The agent loads torch before it forks. So the ranks share torch's pages, and none of them loads it
again, even after a restart. No thread of torch runs yet.

**Nothing survives.** The agent is the sub-reaper of the launch, as the guardian is of a session. Any process that ranks
start, however deep, becomes the agent's child at the latest when it is orphaned, and is killed at the end. The end of a
pipe shows that the front is gone, for any reason. If the agent is killed, the kernel kills the ranks, and the processes
that they started fall to the front.

**Ports.** A fork of the agent serves the store through which ranks find each other, one for each attempt. Its port
listens before any rank exists, so no other program can take it.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import math
import os
import select
import signal
import sys
import time
import traceback
from types import FrameType
from typing import NoReturn

from hocket import exceptions
from hocket._base import settings
from hocket.cli.launch import backend, output, rank, report, store
from hocket.cli.launch import plan as plans
from hocket.engine import descendants, outlets, templates

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that request the end of a launch. The ranks get the same signal."""

SETTLE_SECONDS = 0.5
"""How long processes that ranks have started may outlive them. Python's own trackers of shared memory clean up after
their program has died; a guess at how long that takes."""

NOTICE_SECONDS = settings.read_seconds("HOCKET_RUN_NOTICE_S", 20)
"""How long ranks may go on after the first one has ended well, before the agent reports that."""

PATIENCE_SECONDS = 1.0
"""How long a rank may take to end on request, before the agent reports that it waits. A guess."""


_BOTH = 3
"""The bits of a rank's stdout and stderr."""

_OURS = (os.path.dirname(os.path.abspath(__file__)), "<frozen runpy>", '"<string>", line')
"""Frames that are of no use to a user."""


class Child:
    """A rank in one attempt."""

    def __init__(self, number: int) -> None:
        self.rank = number
        self.note = rank.Note()
        self.stack_fd = os.memfd_create("hocket-stack", os.MFD_CLOEXEC)
        self.error_fd = os.memfd_create("hocket-error", os.MFD_CLOEXEC)
        self.stderr: output.Source | None = None
        self.started_at = time.monotonic()
        self.pid = 0
        self.is_ended_by_us = False

    def close(self) -> None:
        """Close its files."""
        for fd in (self.note.fd, self.stack_fd, self.error_fd):
            os.close(fd)


class LaunchAgent:
    """The agent's state and loop."""

    def __init__(self, plan: plans.LaunchPlan, lifeline: int) -> None:
        self._plan = plan
        self._lifeline = lifeline
        self._relay = output.Relay()
        self._living: dict[int, Child] = {}
        self._endings: list[report.Ending] = []
        #: The process that serves the store.
        self._server: int | None = None
        #: Signals that have arrived and were not handled yet.
        self._asked: list[int] = []
        #: The first signal that requested the end of the launch.
        self._stopped_by: int | None = None
        #: When and with which signals the agent requested the end of the living ranks, and when it kills them.
        self._asked_at = math.inf
        self._sent: set[int] = set()
        self._deadline: float | None = None
        #: When to report that the agent waits for ranks to end.
        self._say_at: float | None = None
        #: When to report that ranks go on although others have ended.
        self._tell_at: float | None = None
        self._usual = {number: signal.getsignal(number) for number in STOP_SIGNALS}
        self._pid = os.getpid()
        self._wake_read, self._wake_write = descendants.open_wake_pipe()
        for number in self._list_heeded():
            signal.signal(number, self._on_signal)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        self._oom_kills = descendants.count_oom_kills()

    def _list_heeded(self) -> list[int]:
        """Return the stop signals that the parent did not set to be ignored, as `nohup` does."""
        return [number for number, usual in self._usual.items() if usual is not signal.SIG_IGN]

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._asked.append(number)

    def run(self) -> int:
        """Run the script until it succeeds or no restart is left, and return the exit code."""
        most = self._plan.max_restarts
        for attempt in range(most + 1):
            self._run_attempt(attempt)
            failures = [ending for ending in self._endings if ending.is_failure]
            if self._asked and self._stopped_by is None:
                self._stopped_by = self._asked[0]
            if self._stopped_by is not None:
                return self._finish_stopped(self._stopped_by)
            if not failures:
                return 0
            if attempt < most:
                self._relay.say(report.announce_restart(self._endings, attempt=attempt, max_restarts=most))
        self._relay.say(report.explain(self._endings, attempt=most, max_restarts=most))
        return report.find_first(self._endings).code

    def _finish_stopped(self, number: int) -> int:
        if all(ending.code == 0 for ending in self._endings):  # they handled the signal, and ended well
            return 0
        self._relay.say(_describe_stop(number))
        return 128 + number

    def _run_attempt(self, attempt: int) -> None:
        self._endings = []
        self._asked_at, self._sent = math.inf, set()
        self._deadline = self._say_at = self._tell_at = None
        address = self._start_server()
        for number in range(self._plan.num_workers):
            self._start(number, attempt, address)
            if select.select([self._lifeline], [], [], 0)[0]:  # the front is gone: start no more ranks
                self._end_at_once()
        while self._living:
            self._wait()
        self._end_leftovers()
        self._endings.sort(key=lambda ending: ending.rank)

    # --- birth --------------------------------------------------------------------------------------------------------

    def _start_server(self) -> tuple[str, int]:
        """Start the process that serves the store, and return its address."""
        with store.listen() as listener:
            address: tuple[str, int] = listener.getsockname()
            # In the fork, a signal must not run the agent's handlers.
            signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
            self._server = os.fork()
            if self._server == 0:
                try:
                    # Only an error ends the block, and none of the agent's code may run in the fork.
                    self._leave([], [], [])
                    descendants.set_name("hocket:store")
                    store.serve(listener)
                finally:
                    os._exit(1)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        return address

    def _end_server(self) -> None:
        if self._server is not None:
            descendants.kill(self._server)

    def _start(self, number: int, attempt: int, address: tuple[str, int]) -> None:
        child = Child(number)
        prefix = f"[{number}] " if self._plan.is_prefixed else ""
        logged = self._plan.logs[number] if self._plan.logs else 0
        shown = self._plan.shown[number] if self._plan.shown else _BOTH
        targets = (1, 2) if prefix or logged or shown != _BOTH else (2,)
        logs = {target: self._open_log(number, attempt, target) for target in targets if logged & target}
        pipes = [(target, *output.open_pipe(target, is_logged=target in logs)) for target in targets]
        environment = build_environment(self._plan, number, attempt, address, child.error_fd)
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        child.pid = os.fork()
        if child.pid == 0:
            kept = [*(ours for _, ours, _ in pipes), *logs.values()]
            self._leave([theirs for _, _, theirs in pipes], kept, [1, 2][-len(pipes) :])
            gc.enable()
            os.environ.update(environment)
            sys.exit(rank.run(self._plan, child.note, child.stack_fd))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        for target, ours, theirs in pipes:
            os.close(theirs)
            source = self._relay.add(ours, target, prefix, logs.get(target), is_shown=bool(shown & target))
            if target == 2:
                child.stderr = source
        self._living[child.pid] = child

    def _open_log(self, number: int, attempt: int, target: int) -> int:
        """Open the log file for a stream of a rank."""
        folder = os.path.join(self._plan.log_folder, f"attempt_{attempt}", str(number))
        os.makedirs(folder, exist_ok=True)
        name = {1: "stdout.log", 2: "stderr.log"}[target]
        return os.open(os.path.join(folder, name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)

    def _leave(self, theirs: list[int], ours: list[int], targets: list[int]) -> None:
        """In a fork: give up all that belongs to the agent."""
        descendants.begin_child(os.path.basename(sys.executable)[:15], self._pid)
        for number, usual in self._usual.items():
            signal.signal(number, usual)
        for fd, target in zip(theirs, targets, strict=True):
            os.dup2(fd, target)
        own = (self._lifeline, self._wake_read, self._wake_write)
        for fd in (*own, *theirs, *ours, *self._relay.list_descriptors()):
            os.close(fd)
        for child in self._living.values():
            child.close()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)

    # --- life ---------------------------------------------------------------------------------------------------------

    def _wait(self) -> None:
        poll = select.poll()
        poll.register(self._lifeline, select.POLLIN)
        poll.register(self._wake_read, select.POLLIN)
        self._relay.register(poll)
        for fd, _ in poll.poll(self._count_milliseconds()):
            if fd == self._lifeline:
                self._end_at_once()
            elif fd == self._wake_read:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_read, 4096)
            else:
                self._relay.handle(fd)
        while self._asked:
            self._stop(self._asked.pop(0))
        self._reap()
        self._keep_time()

    def _count_milliseconds(self) -> int | None:
        """Return how long to wait for events at most; None without end."""
        times = [
            at for at in (self._deadline, self._say_at, self._tell_at, self._relay.find_release()) if at is not None
        ]
        return max(0, int((min(times) - time.monotonic()) * 1000) + 1) if times else None

    def _stop(self, number: int) -> None:
        """Pass a signal on to the ranks; a second signal ends them at once."""
        is_first = self._stopped_by is None and self._deadline is None
        self._stopped_by = self._stopped_by or number
        if is_first:
            self._ask_to_end(number)
        else:
            self._deadline = time.monotonic()

    def _ask_to_end(self, number: int) -> None:
        """Send the living ranks a signal, but not their children: a rank may need these to save its state."""
        for child in self._living.values():
            child.is_ended_by_us = True
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, number)
        now = self._asked_at = time.monotonic()
        self._sent.add(number)
        self._deadline = now + self._plan.grace_s
        self._say_at = now + PATIENCE_SECONDS

    def _keep_time(self) -> None:
        now = time.monotonic()
        self._relay.release(now)
        if self._say_at is not None and now >= self._say_at:
            self._say_at = None
            if self._living and self._deadline is not None and now < self._deadline:
                ranks = ", ".join(str(child.rank) for child in self._living.values())
                rest = self._deadline - now
                self._relay.say(
                    f"hocket run: waiting for rank {ranks} to end, {rest:.0f} s at most (--grace); Ctrl-C ends all "
                    "now.\n"
                )
        if self._tell_at is not None and now >= self._tell_at:
            self._tell_at = None
            self._tell_of_stragglers()
        if self._deadline is not None and now >= self._deadline:
            self._deadline = None
            self._sent.add(signal.SIGKILL)
            for child in self._living.values():
                descendants.kill_group(child.pid)

    # --- death --------------------------------------------------------------------------------------------------------

    def _reap(self) -> None:
        for ended in descendants.reap():
            child = self._living.get(ended.pid)
            if child is not None:
                self._bury(child, ended)
            elif ended.pid == self._server:
                self._server = None
                self._relay.say(report.tell_of_server(ended))

    def _bury(self, child: Child, ended: descendants.Ended) -> None:
        del self._living[child.pid]
        now = time.monotonic()
        signal_number, exit_code = ended.signal_number, ended.exit_code
        oom_kills = descendants.count_oom_kills()
        word = child.note.read()
        if word is not None and word.time <= self._asked_at and signal_number in self._sent - {signal.SIGKILL}:
            signal_number, exit_code = None, word.code  # it had failed before our signal ended it
        assert child.stderr is not None
        # The death's report includes the rank's last output.
        self._relay.take_rest(child.stderr.fd)
        death = exceptions.Death(
            pid=child.pid,
            signal_number=signal_number,
            exit_code=exit_code,
            peak_rss_bytes=ended.peak_rss_bytes,
            out_of_memory=signal_number == signal.SIGKILL and oom_kills > self._oom_kills,
            stderr_tail=child.stderr.read_tail(),
            stack=descendants.read_stack(child.stack_fd, _OURS) if signal_number is not None else "",
            # The failure is the rank's own if it came before our request, or from a signal that we did not send.
            expected=child.is_ended_by_us
            and (word is None or word.time > self._asked_at)
            and (signal_number is None or signal_number in self._sent),
        )
        self._oom_kills = oom_kills
        ending = report.Ending(
            rank=child.rank,
            death=death,
            ended_at=word.time if word else now,
            ran_s=(word.time if word else now) - child.started_at,
            summary=word.summary if word else "",
            recorded=report.parse_recorded(os.pread(child.error_fd, descendants.TAIL_BYTES, 0)),
        )
        self._endings.append(ending)
        child.close()
        # One failure ends all ranks: the others would fail, too, or wait for the failed one.
        if ending.is_failure and self._deadline is None and self._living:
            self._ask_to_end(signal.SIGTERM)
        elif self._tell_at is None and len(self._endings) == 1:
            self._tell_at = now + NOTICE_SECONDS

    def _tell_of_stragglers(self) -> None:
        """Report once that ranks go on. That may be intended, or they may wait for ever for a rank that has ended."""
        if self._living and self._deadline is None:
            living = [f"{child.rank} (pid {child.pid})" for child in self._living.values()]
            self._relay.say(report.tell_of_stragglers(self._endings, living, NOTICE_SECONDS))

    def _end_leftovers(self) -> None:
        """End the processes that ranks have left behind, and relay the last output."""
        self._settle()
        self._drain()

    def _end_at_once(self) -> NoReturn:
        """End all processes without delay, because the front is gone or the launch cannot go on."""
        for child in self._living.values():
            descendants.kill(child.pid)
        self._settle()
        os._exit(1)

    def _settle(self) -> None:
        """End the store and all descendants. Processes that clean up after the ranks get `SETTLE_SECONDS` for that."""
        self._end_server()
        deadline = time.monotonic() + SETTLE_SECONDS
        while descendants.list_descendants(self._pid) and time.monotonic() < deadline:
            time.sleep(0.005)
            descendants.reap_orphans()
        descendants.end_all()

    def give_up(self, error: OSError) -> NoReturn:
        """End everything: the system has no process, descriptor or terminal left for a rank."""
        ranks = "1 rank" if self._plan.num_workers == 1 else f"{self._plan.num_workers} ranks"
        self._relay.say(
            f"hocket run: {ranks} cannot be started here: {error}. Use fewer --workers, or raise the limits that "
            "`ulimit -a` shows.\n"
        )
        self.finish()
        self._end_at_once()

    def _drain(self) -> None:
        """Relay the last output; only for a short time if a signal stopped the launch."""
        self._relay.drain(outlets.LAST_SECONDS if self._stopped_by is None else output.STOPPED_SECONDS)

    def finish(self) -> None:
        """Write all remaining output, as the agent's last act."""
        self._drain()
        self._relay.close()


def build_environment(
    plan: plans.LaunchPlan, number: int, attempt: int, address: tuple[str, int], error_fd: int
) -> dict[str, str]:
    """Return the environment variables of a rank, which are torchrun's."""
    size = str(plan.num_workers)
    return {
        "RANK": str(number),
        "LOCAL_RANK": str(number),
        "GROUP_RANK": "0",
        "ROLE_RANK": str(number),
        "ROLE_NAME": "default",
        "WORLD_SIZE": size,
        "LOCAL_WORLD_SIZE": size,
        "GROUP_WORLD_SIZE": "1",
        "ROLE_WORLD_SIZE": size,
        "MASTER_ADDR": address[0],
        "MASTER_PORT": str(address[1]),
        "TORCHELASTIC_RESTART_COUNT": str(attempt),
        "TORCHELASTIC_MAX_RESTARTS": str(plan.max_restarts),
        "TORCHELASTIC_RUN_ID": plan.run_id,
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_SIGNALS_TO_HANDLE": ",".join(number.name for number in STOP_SIGNALS),
        "TORCHELASTIC_ERROR_FILE": f"/proc/{os.getpid()}/fd/{error_fd}",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        # All ranks are here, so gloo need not look up this machine in the network.
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
    }


def _describe_stop(number: int) -> str:
    name = signal.Signals(number).name
    return f"hocket run: stopped by {name}{' (Ctrl-C)' * (name == 'SIGINT')}; all ranks have ended.\n"


def _load(modules: tuple[str, ...], replacement: str) -> None:
    """Import the modules that ranks will need, and announce Hocket's backend. Meanwhile a signal ends this process at
    once, because there are no ranks to end first."""
    heeded = [number for number in STOP_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    usual = {number: signal.signal(number, _exit_at_once) for number in heeded}
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    descendants.die_with_parent()
    for name in modules:
        try:
            with templates.load_modules_only():
                importlib.import_module(name)
        except Exception as error:  # noqa: BLE001 (whatever it is, the ranks may do without)
            if not (isinstance(error, ModuleNotFoundError) and error.name == name):
                _tell_of_failed_import(name, error)
    backend.announce(replacement)
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    descendants.die_with_parent(0)  # from here on the lifeline shows the front's end, and the ranks must end first
    for number, handler in usual.items():
        signal.signal(number, handler)


def _tell_of_failed_import(name: str, error: Exception) -> None:
    """Print the error of an import, since the ranks may fail in another way when they import the rest."""
    text = "".join(traceback.format_exception(error))
    with contextlib.suppress(OSError):
        os.write(
            2, f"{text}hocket run: the import of {name} failed, as above, before the ranks were started.\n".encode()
        )


def _exit_at_once(number: int, frame: FrameType | None) -> NoReturn:
    with contextlib.suppress(OSError):
        os.write(2, _describe_stop(number).encode())
    os._exit(128 + number)


def main(lifeline: int) -> None:
    """Run the agent for the whole life of its process. In a rank, leave by `SystemExit`, as a script does."""
    descendants.adopt()
    plan = plans.parse_plan(_read_line(lifeline))
    if not sys.flags.safe_path:
        sys.path[0] = plan.get_path_entry()
    elif not plan.is_module and not plans.is_plain_script(plan.target):
        sys.path.insert(0, plan.get_path_entry())
    descendants.set_name("hocket:keeper")
    descendants.allow_forks()
    gc.disable()  # measured: collections take 0.35 of the 2.0 s in which torch and its compiler load
    _load(plan.modules, plan.backend)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # None if its descriptor was closed
            stream.flush()  # else each rank would write an import's output again
    # Collections now skip all existing objects, so the ranks share their pages. A collection here would take 0.25 s.
    gc.freeze()
    agent = LaunchAgent(plan, lifeline)
    try:
        code = agent.run()
    except OSError as error:
        agent.give_up(error)
    agent.finish()
    os._exit(code)


def _read_line(fd: int) -> str:
    data = b""
    while not data.endswith(b"\n"):
        more = os.read(fd, 1 << 16)
        if not more:
            os._exit(1)  # the front died before it wrote the whole plan
        data += more
    return data.decode()
