"""A rank: a fork of the agent becomes the user's script, as if Python had been started with it."""

from __future__ import annotations

import builtins
import faulthandler
import importlib.machinery
import io
import json
import os
import runpy
import sys
import time
import types
from typing import Any, NamedTuple

from hocket._base import texts
from hocket.cli.launch import plan as plans
from hocket.engine import descendants, descriptors

_OURS = (__file__, "<frozen runpy>", runpy.__file__)
"""Files with frames that are of no use to a user."""


class Word(NamedTuple):
    """A rank's report of its failure."""

    time: float
    """The time of the failure, by the monotonic clock."""
    summary: str
    code: int


class Note:
    """A rank's note about its end, for the agent.

    The agent can read it after any death. The note has no name, so there is no file to clean up.
    """

    def __init__(self) -> None:
        self.fd = os.memfd_create("hocket-note", os.MFD_CLOEXEC)

    def write(self, summary: str, code: int) -> None:
        """Note that the script has failed now, and the exit code with which the process will end."""
        os.pwrite(self.fd, json.dumps({"time": time.monotonic(), "summary": summary, "code": code}).encode(), 0)

    def read(self) -> Word | None:
        """Return the time and cause of the script's failure; None if the rank left no note."""
        try:
            fields = json.loads(os.pread(self.fd, 16 * 1024, 0))
            return Word(float(fields["time"]), str(fields["summary"]), int(fields["code"]))
        except ValueError:
            return None


def run(plan: plans.LaunchPlan, note: Note, stack_fd: int) -> int:
    """Run the script in this process, and return its exit code."""
    pid = os.getpid()
    if not faulthandler.is_enabled():
        faulthandler.enable(stack_fd)
    descendants.draw_new_random_numbers()
    _write_lines_at_once()
    _become_main(plan)
    try:
        _run_target(plan)
    except SystemExit as error:
        code = _get_code(error)
        if code and os.getpid() == pid:
            note.write("", code)
        return code
    except BaseException as error:  # noqa: BLE001 (this is the end of the script)
        code = 130 if isinstance(error, KeyboardInterrupt) else 1
        if os.getpid() == pid:  # the script may have forked
            note.write(_summarize(error), code)
        _show(error)
        return code
    return 0


def _write_lines_at_once() -> None:
    """Make stdout write each line at once. torchrun starts its ranks with ``python -u``, which writes parts of lines.

    Without a buffer below, a print is also safe in the handler of a signal that interrupts another print.
    """
    for name, fd in (("stdout", 1), ("stderr", 2)):
        usual = getattr(sys, name)
        if not isinstance(usual, io.TextIOWrapper):
            continue
        is_unbuffered = isinstance(usual.buffer, io.FileIO)  # PYTHONUNBUFFERED: `print` writes parts of lines
        if is_unbuffered or (name == "stdout" and isinstance(usual.buffer, io.BufferedWriter)):
            raw = _WholeFile(fd, "w", closefd=False)
            raw.name = f"<{name}>"  # the name that Python gives it
            stream = io.TextIOWrapper(
                raw, encoding=usual.encoding, errors=usual.errors, newline="\n", line_buffering=True
            )
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)


class _WholeFile(io.FileIO):
    """An unbuffered file that writes all data, despite interrupting signals and on a non-blocking descriptor."""

    def write(self, data: Any, /) -> int:
        rest = memoryview(data).cast("B")
        size = len(rest)
        while rest:
            written = super().write(rest)
            if written is None:
                descriptors.is_writable(self.fileno(), None)
            else:
                rest = rest[written:]
        return size


def _become_main(plan: plans.LaunchPlan) -> None:
    """Set up the names that a script sees. Hocket's modules are removed, and load again on import."""
    package = __name__.partition(".")[0]
    for name in list(sys.modules):
        if name == package or name.startswith(f"{package}."):
            del sys.modules[name]
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __annotations__={})
    sys.modules["__main__"] = main
    sys.argv = ["-m" if plan.is_module else plan.target, *plan.args]
    sys.orig_argv = [sys.executable, *(["-m"] if plan.is_module else []), plan.target, *plan.args]


def _run_target(plan: plans.LaunchPlan) -> None:
    if plan.is_program:
        sys.stdout.flush()
        os.execvp(plan.target, [plan.target, *plan.args])  # noqa: S606 (the user's own program)
    if plan.is_module:
        runpy._run_module_as_main(plan.target)  # type: ignore[attr-defined]  # what `python -m` itself calls
    elif not plans.is_plain_script(plan.target):
        runpy._run_module_as_main("__main__", False)  # type: ignore[attr-defined]  # and `python folder`
    else:
        path = os.path.abspath(plan.target)
        loader = importlib.machinery.SourceFileLoader("__main__", path)
        namespace = sys.modules["__main__"].__dict__
        namespace.update(__file__=path, __cached__=None, __loader__=loader, __spec__=None)
        with open(path, "rb") as file:
            source = file.read()
        exec(compile(source, path, "exec", dont_inherit=True), namespace)  # noqa: S102 (the user's own program)


def _get_code(error: SystemExit) -> int:
    """Return the exit code that Python derives from `sys.exit`, and print its message."""
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    print(error.code, file=sys.stderr)
    return 1


def _summarize(error: BaseException) -> str:
    """Return the first line of the error, cut to a readable length."""
    text = texts.safe_text(error)
    line = text.strip().partition("\n")[0][:300]
    name = type(error).__qualname__
    return f"{name}: {line}" if line else name


def _show(error: BaseException) -> None:
    """Print the traceback, starting at the script's first frame."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_frame.f_code.co_filename in _OURS:
        traceback = traceback.tb_next
    sys.excepthook(type(error), error.with_traceback(traceback), traceback)
