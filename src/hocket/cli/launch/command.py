"""The front of `hocket run`: checks the request, starts the agent, passes signals on, and waits."""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType

from hocket.cli import notices
from hocket.cli.launch import agent, imports
from hocket.cli.launch import plan as plans
from hocket.engine import descendants, node

_BOTH = 3
"""The bits of a rank's stdout and stderr."""

MAX_WORKERS = 10_000
"""How many ranks a launch has at most: no machine starts as many."""

USAGE_ERROR = 2
"""The exit code for an invalid request, as in argparse."""

_BOOT = """
import sys
path = list(sys.path)
if not sys.flags.safe_path:
    del sys.path[0]
import importlib.util
sys.path.insert(0, {source!r})
sys.modules[{package!r}] = importlib.util.module_from_spec(importlib.util.find_spec({package!r}))
from hocket.cli.launch import agent
sys.path[:] = path
del path, sys, importlib
agent.main({lifeline})
"""
"""The agent's program. It loads only the few modules that the agent needs, without the package's public names. As in
the ranks, a file in the current folder does not hide a module of Python's own."""

_PACKAGE = __name__.partition(".")[0]
_SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
"""The folder from which this package was imported; the agent imports it from there, too."""


def run(
    target: str,
    args: Sequence[str],
    *,
    is_module: bool,
    workers: str,
    threads: int | None,
    max_restarts: int,
    grace_s: float,
    is_prefixed: bool,
    is_program: bool = False,
    backend: str = "",
    logs: Logs | None = None,
) -> int:
    """Run a script on several processes.

    Args:
        target: The script's path, or a module's name.
        args: The script's ``sys.argv[1:]``.
        is_module: Whether `target` is a module, as in ``python -m``.
        workers: The number of ranks, ``"cpu"``, ``"gpu"``, or ``"auto"`` for the GPUs if there are any, else the CPUs.
        threads: The ranks' OMP_NUM_THREADS. Default: their share of the CPUs, unless the variable is set.
        max_restarts: How often all ranks start again after a failure.
        grace_s: How many seconds ranks have to end on request.
        is_prefixed: Whether each line of output begins with its rank.
        is_program: Whether `target` is a program other than Python.
        backend: The backend for scripts that request gloo; empty: gloo.
        logs: The output that goes to files. Default: none.

    Returns:
        0 if all ranks succeeded; else the exit code of the rank that failed first, or 128 plus the number of the signal
        that ended it. 128 plus a signal's number if that signal stopped the launcher. 2 for an invalid request.
    """
    try:
        path = find_program(target) if is_program else find_module(target) if is_module else find_script(target)
        num_workers = parse_workers(workers)
        logged, shown = (logs or Logs()).resolve(num_workers)
    except ValueError as error:
        print(f"hocket run: {error}", file=sys.stderr)
        return USAGE_ERROR
    root = os.getcwd() if is_module else os.path.dirname(os.path.realpath(target))
    run_id = str(uuid.uuid4())
    folder = ""
    if any(logged):
        folder = os.path.join((logs and logs.folder) or tempfile.mkdtemp(prefix="hocket_run_"), run_id)
        try:
            os.makedirs(folder, exist_ok=True)
        except OSError as error:
            print(
                f"hocket run: --log-dir {logs and logs.folder!r} cannot be used: {error.strerror}. Name a folder that "
                "you may write to.",
                file=sys.stderr,
            )
            return USAGE_ERROR
        notices.notify(f"hocket run: output goes to {folder}")
    plan = plans.LaunchPlan(
        target=target,
        args=tuple(args),
        is_module=is_module,
        num_workers=num_workers,
        max_restarts=max_restarts,
        grace_s=grace_s,
        is_prefixed=is_prefixed,
        is_program=is_program,
        backend=backend,
        logs=logged,
        shown=shown,
        log_folder=os.path.abspath(folder) if folder else "",
        run_id=run_id,
        modules=imports.list_modules(path, (root,)) if path else (),
    )
    return Front(plan, choose_threads(num_workers, threads)).run()


@dataclass(frozen=True, kw_only=True)
class Logs:
    """The targets of each stream of the ranks, in torchrun's words: 1 is stdout, 2 is stderr, 3 both, 0 neither; for
    all ranks, or as ``"0:3,1:2"`` for some."""

    folder: str = ""
    """The folder of the files. Default: a new temporary folder."""
    redirects: str = ""
    """The streams that go only to files."""
    tee: str = ""
    """The streams that go to files and are shown, too."""
    filter: str = ""
    """The ranks that show their output: ``"0,1"``. Default: all."""

    def resolve(self, num_workers: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the streams that go to files, and the streams that are shown, for each rank."""
        alone = _parse_streams("--redirects", self.redirects, num_workers)
        # A folder alone requests files of all streams.
        both = "3" if self.folder and not self.redirects and not self.tee else self.tee
        shared = _parse_streams("--tee", both, num_workers)
        shown = [_BOTH & ~one | other for one, other in zip(alone, shared, strict=True)]
        if self.filter:
            ranks = self.filter.split(",")
            if not all(rank.strip().isdecimal() and int(rank) < num_workers for rank in ranks):
                raise ValueError(
                    f"--local-ranks-filter takes ranks from 0 to {num_workers - 1}, such as 0,1, but received "
                    f"{self.filter!r}."
                )
            chosen = {int(rank) for rank in ranks}
            shown = [streams if rank in chosen else 0 for rank, streams in enumerate(shown)]
        return tuple(one | other for one, other in zip(alone, shared, strict=True)), tuple(shown)


def _parse_streams(option: str, text: str, num_workers: int) -> list[int]:
    found = [0] * num_workers
    named: set[int] = set()
    for part in filter(None, text.split(",")):
        rank, colon, streams = part.rpartition(":")
        is_known = streams in ("0", "1", "2", "3") and (not colon or (rank.isdecimal() and int(rank) < num_workers))
        if not is_known or (not colon and "," in text):
            raise ValueError(
                f"{option} takes 0 (nothing), 1 (stdout), 2 (stderr) or 3 (both), or one of these for each of the "
                f"ranks 0 to {num_workers - 1}, such as 0:3,1:2, but received {text!r}."
            )
        chosen = [int(rank)] if colon else range(num_workers)
        if colon and chosen[0] in named:
            raise ValueError(
                f"{option} names rank {chosen[0]} twice: {text!r}. Name each rank once; 3 selects both streams."
            )
        named.update(chosen)
        for number in chosen:
            found[number] = int(streams)
    return found


class Front:
    """The process between the terminal and the agent."""

    def __init__(self, plan: plans.LaunchPlan, threads: str | None) -> None:
        self._plan = plan
        self._environment = {**os.environ, **({"OMP_NUM_THREADS": threads} if threads else {})}
        self._process: subprocess.Popen[bytes] | None = None

    def run(self) -> int:
        """Run the agent until it ends, and return its exit code."""
        descendants.adopt()  # if the agent is killed, the ranks' other processes fall to this one
        heeded = [number for number in agent.STOP_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        # The agent inherits the mask: until it is ready, signals wait.
        signal.pthread_sigmask(signal.SIG_BLOCK, agent.STOP_SIGNALS)
        usual = {number: signal.signal(number, self._pass_on) for number in heeded}
        try:
            lifeline = self._start()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, agent.STOP_SIGNALS)
            assert self._process is not None
            code = self._process.wait()
            os.close(lifeline)
        finally:
            for number, handler in usual.items():
                signal.signal(number, handler)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, agent.STOP_SIGNALS)
        return code if code >= 0 else self._clear_up(-code)

    def _start(self) -> int:
        """Start the agent, and return this end of the pipe that shows the agent that the front lives."""
        theirs, ours = os.pipe2(os.O_CLOEXEC)
        boot = _BOOT.format(source=_SOURCE, package=_PACKAGE, lifeline=theirs)
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        try:
            # In a session of its own, since a Ctrl-C of the terminal goes to the front. The script and its arguments
            # only show in `ps` which launch the process belongs to.
            self._process = subprocess.Popen(
                [sys.executable, *flags, "-c", boot, self._plan.target, *self._plan.args],
                pass_fds=(theirs,),
                env=self._environment,
                start_new_session=True,
            )
        finally:
            os.close(theirs)
        with contextlib.suppress(BrokenPipeError), open(os.dup(ours), "w", encoding="utf-8") as pipe:
            pipe.write(self._plan.format() + "\n")
        return ours

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        assert self._process is not None, "signals are blocked until it is there"
        self._process.send_signal(number)

    def _clear_up(self, signal_number: int) -> int:
        descendants.end_all()
        name = signal.Signals(signal_number).name
        print(
            f"hocket run: the process that supervises the ranks was killed by signal {signal_number} ({name}), and all "
            "ranks ended with it. This process uses little memory, find the sender of the signal, or look at `dmesg`. "
            "Then run the command again.",
            file=sys.stderr,
        )
        return 1


def find_program(target: str) -> str:
    """Return an empty text, since a program has no source to read. Raise if the program does not exist."""
    if shutil.which(target) is None:
        raise ValueError(f"there is no program {target!r} (looked in PATH). Check the name, or its permissions.")
    return ""


def find_script(target: str) -> str:
    """Return the source file of a script: the file, or a folder's ``__main__.py``; empty for an archive."""
    if os.path.isdir(target):
        main = os.path.join(target, "__main__.py")
        if not os.path.isfile(main):
            raise ValueError(f"the folder {target!r} has no __main__.py, so it cannot be run. Name a script in it.")
        return main
    if not os.path.exists(target):
        raise ValueError(
            f"there is no script {target!r} (looked in {os.getcwd()}). Check the path; for a module write -m before "
            "its name."
        )
    try:
        return target if plans.is_plain_script(target) else ""
    except OSError as error:
        raise ValueError(f"the script {target!r} cannot be read: {error.strerror}. Check its permissions.") from error


def find_module(name: str) -> str:
    """Return the file that ``python -m name`` runs; empty if it is no source file. Nothing is imported."""
    usual = list(sys.path)
    if not sys.flags.safe_path:
        sys.path[0] = os.getcwd()  # where `python -m` looks first
    try:
        return _find_module(name)
    finally:
        sys.path[:] = usual


def _find_module(name: str) -> str:
    parts = name.split(".")
    spec = importlib.util.find_spec(parts[0]) if all(parts) and parts[0] != "__main__" else None
    for depth in range(2, len(parts) + 1):
        if spec is None or spec.submodule_search_locations is None:
            spec = None
            break
        spec = importlib.machinery.PathFinder.find_spec(".".join(parts[:depth]), list(spec.submodule_search_locations))
    if spec is not None and spec.submodule_search_locations is not None:
        locations = list(spec.submodule_search_locations)
        spec = importlib.machinery.PathFinder.find_spec(f"{name}.__main__", locations)
        if spec is None:
            raise ValueError(f"the package {name!r} has no __main__.py, so it cannot be run. Name a module in it.")
    if spec is None:
        hint = (
            f" Did you mean the script {name}, without -m?"
            if os.path.isfile(name)
            else " Check the name and the folder."
        )
        raise ValueError(f"there is no module {name!r} (looked in {os.getcwd()} and where Python is installed).{hint}")
    return spec.origin if spec.origin and spec.origin.endswith(".py") else ""


def parse_workers(text: str) -> int:
    """Return the number of ranks that an option's value stands for."""
    if text == "cpu":
        return node.count_cpus()
    if text in ("auto", "gpu"):
        gpus = node.count_gpus()
        if not gpus and text == "gpu":
            raise ValueError(
                "--workers gpu starts a rank for each GPU, but this machine has none. Write --workers cpu, or a number."
            )
        return gpus or node.count_cpus()
    if not text.isdecimal() or not 1 <= int(text[:10]) <= MAX_WORKERS:
        raise ValueError(
            f"--workers must be a whole number from 1 to {MAX_WORKERS:,}, or auto, cpu or gpu, but received {text!r}. "
            "Try --workers 2."
        )
    return int(text)


def choose_threads(num_workers: int, threads: int | None) -> str | None:
    """Return the ranks' OMP_NUM_THREADS; None leaves the variable unchanged. By default every rank would use all cores,
    and they would wait for each other. torchrun uses one thread. A share of the cores is the same with as many ranks as
    cores, and faster with fewer ranks."""
    if threads is not None:
        return str(threads)
    if "OMP_NUM_THREADS" in os.environ or num_workers == 1:
        return None
    return str(max(1, node.count_cpus() // num_workers))
