"""The progress display as a user sees it: in a terminal, in a log, in a notebook, and not at all."""

from __future__ import annotations

import fcntl
import os
import re
import struct
import subprocess
import sys
import tempfile
import termios
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hocket import train
from hocket.train.progress import display, terminal
from tests.train import screen

SOURCE = str(Path(train.__file__).parents[2])

TWO_RANKS = """
import sys
import hocket
from hocket import train

def loop(config):
    rank = train.get_context().get_world_rank()
    for step in range(4):
        sys.stdout.write(f"rank {rank} at {step}\\n")  # in one piece: of print's two, another rank may come between
        sys.stdout.flush()
        if step == 3 and rank == 1:
            open(config["gate"]).read()
        train.report({"step": step, "loss": 1 / (step + 1), "samples": 32})

if __name__ == "__main__":
    print("before")
    with hocket.init(num_cpus=2):
        train.DataParallelTrainer(
            loop,
            train_loop_config={"gate": sys.argv[1], "num_steps": 4},
            scaling_config=train.ScalingConfig(num_workers=2),
            run_config=train.RunConfig(name="run", storage_path=sys.argv[2]),
        ).fit()
    print("the end")
"""


@pytest.fixture
def pty() -> Iterator[tuple[int, int]]:
    """A terminal of 24 rows and 100 columns: the end that a screen reads, and the program's."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    yield ours, theirs
    os.close(ours)
    os.close(theirs)


def feed(shown: screen.Screen, descriptor: int, until: str) -> None:
    """Let the screen show what comes, until a row says something."""
    while not any(until in row for row in shown.read()):
        shown.feed(os.read(descriptor, 4096))


@pytest.mark.slow
@pytest.mark.needs("plain_output")
def test_in_a_terminal_it_stays_below_what_everybody_prints(tmp_path: Path, pty: tuple[int, int]) -> None:
    ours, theirs = pty
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    process = subprocess.Popen(
        [sys.executable, "-c", TWO_RANKS, str(gate), str(tmp_path)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "PYTHONPATH": SOURCE, "TERM": "xterm", "HOCKET_PROGRESS": ""},
    )
    try:
        shown = screen.Screen(24, 100)
        feed(shown, ours, "step 3/4")
        feed(shown, ours, "…")  # rank 1 is waited for
        status = ["".join(cells).rstrip() for cells in shown.cells[-2:]]
        assert re.fullmatch(r"run  step 3/4  ━+.*  loss 0\.3333  [0-9,]+ samples/s  left \d:\d\d  \d:\d\d", status[0])
        assert re.fullmatch(r"lag of ranks  0: \d+ ms  1: .*…", status[1])
        assert shown.bottom == 21
        gate.write_text("go")
        feed(shown, ours, "the end")
        assert process.wait() == 0
    finally:
        process.kill()  # it has ended, unless something above has failed
        process.wait()
    rows = shown.read()
    assert rows[0] == "before"
    assert sorted(rows[1:9]) == [f"rank {rank} at {step}" for rank in (0, 1) for step in range(4)]
    assert re.fullmatch(r"run: done after \d:\d\d, step 4/4, loss 0\.25, [0-9,]+ samples/s", rows[9])
    assert rows[10:] == ["the end"]
    assert shown.bottom == 23


ONE_RANK = """
import os, sys
import hocket
from hocket import train

def loop():
    train.report({"loss": 0.5})
    if "fail" in sys.argv:
        raise ValueError("no")

print("before")
train.DataParallelTrainer(
    loop,
    scaling_config=train.ScalingConfig(num_workers=0),
    run_config=train.RunConfig(name="run", storage_path=sys.argv[1]),
).fit()
print("after")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("switch", "expected"),
    [
        ("off", r""),
        ("plain", r"run: report 1, loss 0\.5\r\nrun: done after 0:\d\d, report 1, loss 0\.5\r\n"),
    ],
)
def test_the_switch_counts_in_a_terminal(tmp_path: Path, pty: tuple[int, int], switch: str, expected: str) -> None:
    ours, theirs = pty
    done = subprocess.run(
        [sys.executable, "-c", ONE_RANK, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=theirs,
        env={**os.environ, "PYTHONPATH": SOURCE, "TERM": "xterm", "HOCKET_PROGRESS": switch},
        text=True,
        check=True,
    )
    os.write(theirs, b"!")
    assert done.stdout == "before\nafter\n"
    seen = b""
    while not seen.endswith(b"!"):
        seen += os.read(ours, 4096)
    assert re.fullmatch(expected + "!", seen.decode())


@pytest.mark.slow
def test_what_goes_to_a_file_goes_there_also_with_a_display(tmp_path: Path, pty: tuple[int, int]) -> None:
    ours, theirs = pty
    failed = subprocess.run(
        [sys.executable, "-c", ONE_RANK, str(tmp_path), "fail"],
        stdout=subprocess.PIPE,
        stderr=theirs,
        env={**os.environ, "PYTHONPATH": SOURCE, "TERM": "xterm", "HOCKET_PROGRESS": ""},
        text=True,
        check=False,
    )
    assert (failed.returncode, failed.stdout) == (1, "before\n")
    shown = screen.Screen(24, 100)
    feed(shown, ours, "ValueError: no")
    assert re.fullmatch(r"run: failed with ValueError after 0:\d\d, report 1, loss 0.5", shown.read()[0])
    assert shown.bottom == 23


def count_to_three() -> None:
    for step in range(3):
        train.report({"step": step, "loss": 0.5})


def fit(path: Path, *callbacks: train.UserCallback, function: Any = count_to_three) -> train.Result:
    return train.DataParallelTrainer(
        function,
        scaling_config=train.ScalingConfig(num_workers=0),
        run_config=train.RunConfig(name="run", storage_path=path, callbacks=callbacks),
    ).fit()


def test_in_a_log_it_writes_lines_if_it_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOCKET_PROGRESS", raising=False)
    fit(tmp_path)
    assert capsys.readouterr() == ("", "")  # nobody has asked, and nobody looks
    shown = train.ProgressDisplay(total=3, interval_s=1e-9)
    for _ in range(2):  # one can be used again
        fit(tmp_path, shown)
        out, errors = capsys.readouterr()
        assert out == ""
        assert [line.partition(", loss")[0] for line in errors.splitlines()] == [
            "run: step 1/3",
            "run: step 2/3",
            "run: step 3/3",
            "run: done after 0:00, step 3/3",
        ]
    fit(tmp_path, train.ProgressDisplay(interval_s=3600))
    assert [line.partition(",")[0] for line in capsys.readouterr().err.splitlines()] == [
        "run: step 0",
        "run: done after 0:00",
    ]
    fit(tmp_path, shown, function=lambda: None)
    assert capsys.readouterr() == ("", "")  # there was nothing to show
    fit(tmp_path, train.ProgressDisplay("off"))
    monkeypatch.setenv("HOCKET_PROGRESS", "off")
    fit(tmp_path, shown)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("HOCKET_PROGRESS", "plain")
    fit(tmp_path)
    assert capsys.readouterr().err.count("\n") == 2
    monkeypatch.setenv("HOCKET_PROGRESS", "loud")
    with pytest.raises(
        ValueError, match=r"HOCKET_PROGRESS must be one of \['auto', 'live', 'plain', 'off'\], but is 'loud'"
    ):
        fit(tmp_path)


def save_once() -> None:
    folder = tempfile.mkdtemp()
    train.report({"loss": 0.5}, train.Checkpoint(folder))


def test_a_run_that_goes_on_is_said_to(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("HOCKET_PROGRESS", raising=False)
    said = (
        "`run` goes on from checkpoint_00000{} of an earlier run with this name; for a new run choose another name, or "
        "leave it out."
    )
    with caplog.at_level("WARNING"):
        for number, mode in enumerate(["plain", "off"]):
            caplog.clear()
            fit(tmp_path, train.ProgressDisplay(mode, interval_s=3600), function=save_once)
            assert caplog.messages == [said.format(number - 1)] * number
            assert "goes on" not in capsys.readouterr().err  # the display does not say it once more
        caplog.clear()
        fit(tmp_path, train.ProgressDisplay("off"), function=lambda: None)
        assert caplog.messages == [
            said.format(1),
            (
                "`run` has trained nothing: the training function returned without a report, because checkpoint_000001 "
                "of the earlier run left nothing to do. The result is that of the earlier run; for a new run choose "
                "another name, or leave it out."
            ),
        ]
        caplog.clear()
        quiet = train.LoggingConfig(log_level="ERROR")
        run = train.RunConfig(name="run", storage_path=tmp_path, logging_config=quiet)
        train.DataParallelTrainer(save_once, scaling_config=train.ScalingConfig(num_workers=0), run_config=run).fit()
        assert (caplog.messages, capsys.readouterr().err) == ([], "")


def test_in_a_notebook_one_output_changes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs: list[list[str]] = []

    class Handle:
        def update(self, bundle: dict[str, str], *, raw: bool) -> None:
            assert raw
            outputs[-1].append(bundle["text/plain"])

    def show(bundle: dict[str, str], *, raw: bool, display_id: bool) -> Handle:
        assert raw
        assert display_id
        assert bundle["text/html"] == f"<pre>{bundle['text/plain']}</pre>"
        outputs.append([bundle["text/plain"]])
        return Handle()

    ipython = types.ModuleType("IPython")
    shell = types.SimpleNamespace(kernel=None)  # a shell in a terminal
    ipython.get_ipython = lambda: shell  # type: ignore[attr-defined]
    shows = types.ModuleType("IPython.display")
    shows.display = show  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", shows)
    monkeypatch.delenv("HOCKET_PROGRESS", raising=False)
    fit(tmp_path)
    assert outputs == []
    shell.kernel = object()
    fit(tmp_path)
    (lines,) = outputs
    assert lines[0] == "run: step 0, loss 0.5"
    assert re.fullmatch(r"run: done after 0:00, step 2, loss 0.5, [\d,]+ steps/s", lines[-1])
    assert capsys.readouterr() == ("", "")


def test_one_run_at_a_time_has_the_terminal(
    tmp_path: Path, pty: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = pty
    monkeypatch.setattr(display, "find_terminal", lambda: theirs)
    monkeypatch.setenv("HOCKET_PROGRESS", "live")

    def loop() -> None:
        train.report({"loss": 0.5})
        fit(tmp_path / "inner", train.ProgressDisplay())
        train.report({"loss": 0.25})

    fit(tmp_path, function=loop)
    shown = screen.Screen(24, 100)
    os.write(theirs, b"!")
    feed(shown, ours, "!")
    assert shown.read() == ["!"]
    assert shown.bottom == 23


def test_rows_follow_the_terminal(pty: tuple[int, int]) -> None:
    ours, theirs = pty
    shown = screen.Screen(24, 100)
    os.write(theirs, b"user> ")
    area = terminal.StatusArea(theirs)
    area.draw(["one", "two"])
    os.write(theirs, b"typed!")
    feed(shown, ours, "!")
    assert shown.read() == ["user> typed!", "one", "two"]
    area.draw(["three"])
    os.write(theirs, b"?")
    feed(shown, ours, "?")
    assert shown.read() == ["user> typed!?", "three"]
    assert shown.bottom == 22
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 5, 100, 0, 0))  # too small for both
    area.draw(["four"])
    area.close()
    os.write(theirs, b"~")
    feed(shown, ours, "~")
    assert shown.read() == ["user> typed!?~"]
    assert shown.bottom == 23


def test_where_it_can_be_drawn(
    pty: tuple[int, int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, theirs = pty
    monkeypatch.setenv("TERM", "xterm")
    assert terminal.is_usable(theirs)
    monkeypatch.setenv("TERM", "dumb")
    assert not terminal.is_usable(theirs)
    monkeypatch.setenv("TERM", "xterm")
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 20, 0, 0))
    assert not terminal.is_usable(theirs)
    with (tmp_path / "file").open("w") as file:
        assert not terminal.is_usable(file.fileno())
    monkeypatch.setattr(sys, "stderr", None)  # as under pythonw
    assert display.find_terminal() is None
    fit(tmp_path, train.ProgressDisplay("plain"))
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mode": "loud"}, r"mode must be one of \['auto', 'live', 'plain', 'off'\], but received 'loud'"),
        ({"total": 0}, "total must be more than 0, but received 0"),
        ({"interval_s": float("nan")}, "interval_s must be more than 0 seconds, but received nan"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        train.ProgressDisplay(**arguments)


class Listener(train.UserCallback):
    def __init__(self, name: str, said: list[Any], fails_at: str = "") -> None:
        self.name, self.said, self.fails_at = name, said, fails_at

    def say(self, what: str, *more: Any) -> None:
        self.said.append((self.name, what, *more))
        if what == self.fails_at:
            raise OSError(f"{self.name} failed at {what}")

    def before_run(self, run_context: Any) -> None:
        self.say("before")

    def after_arrival(self, run_context: Any, counts: Any) -> None:
        self.say("arrival", *counts)

    def after_report(self, run_context: Any, metrics: Any, checkpoint: Any) -> None:
        self.say("report")

    def after_run(self, run_context: Any, error: BaseException | None) -> None:
        self.say("after", str(error) if error else None)


def test_callbacks_hear_of_the_beginning_and_the_end(tmp_path: Path) -> None:
    said: list[Any] = []
    fit(tmp_path, Listener("a", said), Listener("b", said), function=lambda: train.report({"x": 1}))
    assert said == [
        *[("a", "before"), ("b", "before")],
        *[("a", "arrival", 1), ("b", "arrival", 1), ("a", "report"), ("b", "report")],
        *[("b", "after", None), ("a", "after", None)],
    ]
    said.clear()
    with pytest.raises(OSError, match="b failed at before"):
        fit(tmp_path, Listener("a", said), Listener("b", said, "before"))
    assert said == [("a", "before"), ("b", "before"), ("a", "after", "b failed at before")]
    said.clear()
    with pytest.raises(OSError, match="b failed at after"):
        fit(tmp_path, Listener("a", said), Listener("b", said, "after"))
    assert said[-1] == ("a", "after", None)
