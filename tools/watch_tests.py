"""Run pytest, and end it if it cannot end itself.

    python tools/watch_tests.py [--patience SECONDS] -- [pytest's arguments]

A time-out inside of a process ends most hangs. It cannot end a call in C that keeps the interpreter's lock, a test that
swallows the exception, a process that is stopped, a thread that the interpreter joins at its end, an exit handler, or a
run whose worker of pytest-xdist has died. This program is another process, so none of these stops it. Each process of
pytest notes what it is about to do (`tests/progress_notes.py`); a process that stays at one thing for longer than the
thing's limit is named, the stacks of it and of all its descendants are printed, and they are killed. pytest-xdist then
reports that test and goes on with another process; without pytest-xdist the run ends.

The exit status is pytest's, or 1 if anything had to be ended here.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

PATIENCE_SECONDS = 15.0
"""How much longer than its time-out a test may take: its own process should end it first, and tear it down. So long,
too, may pytest take to end by itself after Ctrl-C or SIGTERM."""

EXIT_SECONDS = 60.0
"""How long a process may take from its last test to its end. 2 s are usual; once more than 30 were seen."""

START_SECONDS = 600.0
"""How long a process may collect tests. Half a minute is usual; five were seen, on a machine with ten times as much to
do as it has processors."""

SILENCE_SECONDS = 120.0
"""How long a run may go on in which no process runs a test and none notes anything."""

STACK_SECONDS = 12.0
"""How long one look at a process may take."""

POLL_SECONDS = 0.5

OF_THE_RUNNER = ("(_pytest/", "(pluggy/", "(xdist/", "(execnet/", "(<frozen ")
"""Frames that stand in each stack and say nothing of the test."""


@dataclass(frozen=True)
class Note:
    """What one process of pytest does, as it wrote it down last."""

    pid: int
    born: float
    """When the process began, in seconds since 1970: another one may have its number by now."""
    doing: str
    """`collects`, `runs`, `waits` (for the next test, or for other processes), `debugs`, `closes` (waits for the ends
    of the others) or `ends`."""
    test: str
    """The test that it runs, or ran last."""
    limit: float
    """The test's own time-out in seconds; 0: none."""
    since: float
    """When it began this, by the monotonic clock that all processes share."""


@dataclass(frozen=True)
class Hang:
    """A process that has been at one thing for too long."""

    pid: int
    text: str


@dataclass(frozen=True)
class Limits:
    """How long things may take, in seconds."""

    patience: float = PATIENCE_SECONDS
    exit: float = EXIT_SECONDS


def find_hangs(notes: Iterable[Note], silence: float, runner: int, now: float, limits: Limits) -> list[Hang]:
    """Return the processes that will not end what they do.

    Args:
        silence: For how many seconds no process has noted anything, or ended.
        runner: The process of pytest that was started first.
        now: The time, by the notes' clock.
        limits: How long things may take.
    """
    notes = list(notes)
    closing = next((note.since for note in notes if note.doing == "closes"), None)
    if closing is not None:
        notes = [
            replace(note, doing="ends", since=max(closing, note.since)) if note.doing in ("waits", "ends") else note
            for note in notes
        ]
    elif len(notes) > 1:  # one that has no test left ends when the others have none
        notes = [replace(note, doing="waits") if note.doing == "ends" else note for note in notes]
    hangs = [
        Hang(note.pid, f"{text} for {now - note.since:.0f} s")
        for note in notes
        for text, limit in [_describe(note, limits)]
        if limit and now - note.since > limit
    ]
    if all(note.doing == "waits" for note in notes) and silence > SILENCE_SECONDS:
        hangs.append(Hang(runner, f"No process has run a test for {silence:.0f} s"))
    return hangs


def _describe(note: Note, limits: Limits) -> tuple[str, float]:
    """Return what the process does in words, and after how many seconds that is too long; 0: never."""
    after = f" after {note.test}" if note.test else ""
    if note.doing == "runs":
        return f"{note.test} has run", note.limit + limits.patience if note.limit else 0
    if note.doing == "ends":
        return f"A process of the tests has not ended{after}", limits.exit
    if note.doing == "closes":
        return "pytest has waited for the ends of its processes", 3 * limits.exit
    if note.doing == "collects":
        return "A process has collected tests", START_SECONDS
    return "", 0


def read_notes(folder: Path) -> list[Note]:
    """Return what the living processes wrote down."""
    notes = [Note(**json.loads(path.read_text())) for path in sorted(folder.iterdir()) if path.suffix == ".json"]
    return [note for note in notes if _is_alive(note)]


def _is_alive(note: Note) -> bool:
    try:
        process = psutil.Process(note.pid)
        return process.create_time() == note.born and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class Watch:
    """One run of pytest, from its start to the end of its last process."""

    def __init__(self, arguments: Sequence[str], folder: Path, limits: Limits) -> None:
        self._folder = folder
        self._limits = limits
        self._ended: list[str] = []
        self._interrupted_at = 0.0
        self._notes: list[Note] = []
        self._changed_at = time.monotonic()
        environment = {**os.environ, "HOCKET_TEST_NOTES": str(folder)}
        self._process = subprocess.Popen([sys.executable, "-m", "pytest", *arguments], env=environment)

    def run(self) -> int:
        """Wait for pytest; return the exit status."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)
        while self._wait() is None:
            self._look()
        status = self._process.returncode
        if status < 0 and not self._ended:
            last = [note.test for note in self._read_runner()]
            print(
                f"watch: pytest was ended by signal {-status}; its last test: {last[0] if last else 'none'}", flush=True
            )
        for text in self._ended:
            print(f"watch: ended: {text}", flush=True)
        return 1 if self._ended or status < 0 else status

    def _wait(self) -> int | None:
        try:
            return self._process.wait(POLL_SECONDS)
        except subprocess.TimeoutExpired:
            return None

    def _on_signal(self, number: int, frame: object) -> None:
        """Let pytest end by itself: a terminal has sent it the same signal; `kill` and `timeout` have not."""
        if number == signal.SIGTERM:
            self._process.send_signal(signal.SIGINT)
        self._interrupted_at = self._interrupted_at or time.monotonic()

    def _look(self) -> None:
        now = time.monotonic()
        notes = read_notes(self._folder)
        if notes != self._notes:
            self._notes, self._changed_at = notes, now
        hangs = find_hangs(notes, now - self._changed_at, self._process.pid, now, self._limits)
        if self._interrupted_at and now - self._interrupted_at > self._limits.patience:
            hangs = [
                Hang(self._process.pid, f"pytest has not ended {self._limits.patience:.0f} s after it was interrupted")
            ]
        for hang in hangs:
            self._end(hang)

    def _end(self, hang: Hang) -> None:
        """Print the stacks of a process and its descendants, and kill them."""
        print(f"\nwatch: {hang.text}. Its processes:", flush=True)
        try:
            family = [psutil.Process(hang.pid), *psutil.Process(hang.pid).children(recursive=True)]
        except psutil.NoSuchProcess:
            return
        with ThreadPoolExecutor(len(family)) as looks:
            for text in looks.map(describe_process, family):
                print(text, flush=True)
        for process in family:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        self._ended.append(hang.text)
        (self._folder / f"{hang.pid}.json").unlink(missing_ok=True)

    def _read_runner(self) -> list[Note]:
        path = self._folder / f"{self._process.pid}.json"
        return [Note(**json.loads(path.read_text()))] if path.exists() else []


def describe_process(process: psutil.Process) -> str:
    """Return a process's command, state and stacks, as text."""
    try:
        command = " ".join(process.cmdline())[:200] or process.name()
        state = process.status()
    except psutil.NoSuchProcess:
        return f"--- {process.pid}: has ended"
    head = f"--- {process.pid} ({state}): {command}"
    spy = shutil.which("py-spy", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
    if spy is None:
        return f"{head}\n(no stack: py-spy is not installed)"
    look = [spy, "dump", "--pid", str(process.pid)]
    if state == psutil.STATUS_STOPPED:  # the spy would stop it for the look, and wait for that
        look.append("--nonblocking")
    try:
        found = subprocess.run(look, capture_output=True, text=True, timeout=STACK_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"{head}\n(no stack in {STACK_SECONDS:.0f} s)"
    lines = found.stdout.splitlines()[2:] or found.stderr.splitlines()[:5]
    return "\n".join([head, *_leave_out_the_runner(line for line in lines if line)])


def _leave_out_the_runner(lines: Iterable[str]) -> list[str]:
    """Return the lines without the runner's frames, but for each thread's innermost one."""
    left = [""]
    for line in lines:
        is_outer = line.startswith(" ") and left[-1].startswith(" ")
        if not (is_outer and any(name in line for name in OF_THE_RUNNER)):
            left.append(line)
    return left[1:]


def main() -> int:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(description="Run pytest, and end it if it cannot end itself.")
    parser.add_argument("--patience", type=float, default=PATIENCE_SECONDS, help="seconds beyond a test's time-out")
    parser.add_argument(
        "--exit", type=float, default=EXIT_SECONDS, help="seconds from a process's last test to its end"
    )
    parser.add_argument("arguments", nargs="*", help="pytest's, after --")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hocket-watch-") as folder:
        return Watch(given.arguments, Path(folder), Limits(given.patience, given.exit)).run()


if __name__ == "__main__":
    sys.exit(main())
