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
"""Files whose frames say nothing to a user."""


class Word(NamedTuple):
    """A rank's report of its failure."""

    time: float
    """When it was, by the monotonic clock."""
    summary: str
    code: int


class Note:
    """Where a rank leaves word of its end, for the agent.

    It can be read after any death, and has no name to clean up.
    """

    def __init__(self) -> None:
        self.fd = os.memfd_create("hocket-note", os.MFD_CLOEXEC)

    def write(self, summary: str, code: int) -> None:
        """Leave word that the script failed just now, and with which exit code the process will end."""
        os.pwrite(self.fd, json.dumps({"time": time.monotonic(), "summary": summary, "code": code}).encode(), 0)

    def read(self) -> Word | None:
        """Return when the script failed, and of what; None if it left no word."""
        try:
            fields = json.loads(os.pread(self.fd, 16 * 1024, 0))
            return Word(float(fields["time"]), str(fields["summary"]), int(fields["code"]))
        except ValueError:
            return None


def run(plan: plans.Plan, note: Note, stack_fd: int) -> int:
    """Run the script in this process; return its exit code."""
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
    """Write to stdout what is written there, as ``python -u`` does, with which torchrun starts its ranks; but whole
    lines.

    Without a buffer below it is also safe to print in the handler of a signal that came in the middle of a print.
    """
    for name, fd in (("stdout", 1), ("stderr", 2)):
        usual = getattr(sys, name)
        if not isinstance(usual, io.TextIOWrapper):
            continue
        is_unbuffered = isinstance(usual.buffer, io.FileIO)  # PYTHONUNBUFFERED: `print` would write a line in pieces
        if is_unbuffered or (name == "stdout" and isinstance(usual.buffer, io.BufferedWriter)):
            raw = _WholeFile(fd, "w", closefd=False)
            raw.name = f"<{name}>"  # as Python's own has it
            stream = io.TextIOWrapper(
                raw, encoding=usual.encoding, errors=usual.errors, newline="\n", line_buffering=True
            )
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)


class _WholeFile(io.FileIO):
    """A file without a buffer that writes all it is given: also if a signal comes in between, and if the descriptor is
    one that does not wait."""

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


def _become_main(plan: plans.Plan) -> None:
    """Take on the names that a script sees; what is ours it does not find, and loads anew if it asks."""
    package = __name__.partition(".")[0]
    for name in list(sys.modules):
        if name == package or name.startswith(f"{package}."):
            del sys.modules[name]
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __annotations__={})
    sys.modules["__main__"] = main
    sys.argv = ["-m" if plan.is_module else plan.target, *plan.args]
    sys.orig_argv = [sys.executable, *(["-m"] if plan.is_module else []), plan.target, *plan.args]


def _run_target(plan: plans.Plan) -> None:
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
    """Return the exit code that Python makes of `sys.exit`, and say what it says."""
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    print(error.code, file=sys.stderr)
    return 1


def _summarize(error: BaseException) -> str:
    """Return the first line of the error, cut to a length that is read at a glance."""
    text = texts.safe_text(error)
    line = text.strip().partition("\n")[0][:300]
    name = type(error).__qualname__
    return f"{name}: {line}" if line else name


def _show(error: BaseException) -> None:
    """Print the traceback, from the script's first frame on."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_frame.f_code.co_filename in _OURS:
        traceback = traceback.tb_next
    sys.excepthook(type(error), error.with_traceback(traceback), traceback)
