"""What `tools/watch_tests.py` makes of tests that hang: each is named, with the stacks of its processes, and the run
goes on, or ends."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))
import watch_tests  # noqa: E402  (a program of this repository's, and no package)
from watch_tests import Limits, Note, find_hangs  # noqa: E402

HANGS = {
    "in_c": """
        import ctypes
        mutex, lock = ctypes.create_string_buffer(64), ctypes.PyDLL(None).pthread_mutex_lock
        lock(mutex)
        lock(mutex)  # the interpreter's lock is kept, so no handler of a signal runs
        """,
    "that_swallows": """
        import time
        while True:
            try:
                time.sleep(100)
            except BaseException:
                pass
        """,
    "that_is_stopped": """
        import os, signal
        os.kill(os.getpid(), signal.SIGSTOP)
        """,
    "with_a_child": """
        import signal, subprocess, sys
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
        child = [sys.executable, "-c", "def child_waits(): input()\\nchild_waits()"]
        subprocess.Popen(child, stdin=subprocess.PIPE).wait()
        """,
    "that_dies": """
        import os, signal
        os.kill(os.getpid(), signal.SIGKILL)
        """,
}
AT_THE_END = {
    "thread": """
        import threading, time
        threading.Thread(target=time.sleep, args=(1000,)).start()
        """,
    "exit_handler": """
        import atexit, time
        atexit.register(time.sleep, 1000)
        """,
}


@pytest.fixture
def run_watched(tmp_path):
    """Write a file of tests for each body, with a test behind the one that hangs, and run them under the watch."""

    def run(bodies, *arguments, exit_seconds=30):
        (tmp_path / "pytest.ini").write_text("[pytest]\ntimeout = 1\n")
        (tmp_path / "conftest.py").write_text(
            "from tests import scheduling\n"
            "pytest_plugins = ['tests.progress_notes']\n"
            "def pytest_xdist_make_scheduler(config, log):\n"
            "    return scheduling.build_scheduler(config, log, in_halves='none')\n"
        )
        for name, body in bodies.items():
            (tmp_path / f"test_{name}.py").write_text(
                f"def test_hangs():\n{textwrap.indent(textwrap.dedent(body).strip(), '    ')}\n"
                "def test_behind_it():\n    pass\n"
            )
        watch = [
            sys.executable,
            str(ROOT / "tools" / "watch_tests.py"),
            "--patience",
            "3",
            "--exit",
            str(exit_seconds),
            "--",
        ]
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"}
        return subprocess.Popen(
            [*watch, "-p", "no:cacheprovider", "-q", *arguments],
            cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    return run


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_each_hang_is_named_with_its_stacks_and_the_run_goes_on(run_watched):
    process = run_watched(HANGS, "-n", "3")
    output, _ = process.communicate()
    assert process.returncode == 1
    for name in HANGS:
        assert f"FAILED test_{name}.py::test_hangs" in output, output
    assert f"{len(HANGS)} failed, {len(HANGS)} passed" in output
    named = [line for line in output.splitlines() if line.startswith("watch: ended:")]
    for name in HANGS.keys() - {"that_dies"}:  # pytest-xdist tells of that one by itself
        assert [line for line in named if f"test_{name}.py::test_hangs has run for" in line], output
    assert "test_hangs (test_in_c.py:5)" in output
    assert "test_hangs (test_that_swallows.py:5)" in output
    assert "test_hangs (test_that_is_stopped.py:3)" in output
    assert "child_waits (<string>:1)" in output


@pytest.mark.slow
@pytest.mark.timeout(90)
@pytest.mark.parametrize("processes", ["0", "1"])
@pytest.mark.parametrize("name", AT_THE_END)
def test_an_end_that_hangs_is_named(run_watched, name, processes):
    process = run_watched({name: AT_THE_END[name]}, "-n", processes, exit_seconds=9)
    output, _ = process.communicate()
    assert process.returncode == 1
    assert "2 passed" in output
    assert f"watch: ended: A process of the tests has not ended after test_{name}.py::test_behind_it for" in output
    if name == "thread":
        assert "_shutdown (threading.py" in output


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["in_c", "that_dies"])
def test_one_process_alone_ends(run_watched, name):
    process = run_watched({name: HANGS[name]})
    output, _ = process.communicate()
    assert process.returncode == 1
    assert f"test_{name}.py::test_hangs" in output


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_ends(run_watched, number):
    waits = HANGS["that_swallows"].replace("time.sleep", "print('begun', flush=True) or time.sleep")
    process = run_watched({"waits": waits}, "-s", "-o", "timeout=1000")
    while "begun" not in process.stdout.readline():
        pass
    process.send_signal(number)
    output, _ = process.communicate()
    assert process.returncode == 1
    assert "pytest has not ended 3 s after it was interrupted" in output
    assert "test_hangs (test_waits.py" in output


@pytest.mark.slow
def test_what_passes_is_left_alone(run_watched):
    process = run_watched({"nothing": "pass"})
    output, _ = process.communicate()
    assert (process.returncode, "2 passed" in output, "watch:" in output) == (0, True, False), output


@pytest.mark.parametrize(
    ("note", "seconds", "text"),
    [
        (("runs", "t.py::a", 60.0), 74, None),
        (("runs", "t.py::a", 60.0), 76, "t.py::a has run for 76 s"),
        (("runs", "t.py::a", 0.0), 10_000, None),
        (("debugs", "t.py::a", 60.0), 10_000, None),
        (("collects", "", 0.0), 599, None),
        (("collects", "", 0.0), 601, "A process has collected tests for 601 s"),
        (("ends", "t.py::a", 60.0), 59, None),
        (("ends", "t.py::a", 60.0), 61, "A process of the tests has not ended after t.py::a for 61 s"),
    ],
)
def test_limits(note, seconds, text):
    doing, test, limit = note
    notes = [Note(7, 1.0, doing, test, limit, since=100.0)]
    hangs = find_hangs(notes, silence=0, runner=1, now=100 + seconds, limits=Limits())
    assert [(hang.pid, hang.text) for hang in hangs] == ([(7, text)] if text else [])


@pytest.mark.parametrize("notes", [[], [Note(1, 1.0, "waits", "", 0, 0), Note(7, 1.0, "waits", "t.py::a", 60, 0)]])
def test_a_run_in_which_nobody_does_anything_is_ended(notes):
    hangs = find_hangs(notes, silence=121, runner=1, now=500, limits=Limits())
    assert [(hang.pid, hang.text) for hang in hangs] == [(1, "No process has run a test for 121 s")]
    notes = [*notes, Note(8, 1.0, "runs", "t.py::b", 600, 400)]
    assert find_hangs(notes, silence=121, runner=1, now=500, limits=Limits()) == []


def test_workers_have_to_end_once_all_tests_are_done():
    notes = [Note(1, 1.0, "closes", "", 0, 100), Note(7, 1.0, "waits", "t.py::a", 60, 10)]
    assert find_hangs(notes, silence=0, runner=1, now=159, limits=Limits()) == []
    hangs = find_hangs(notes, silence=0, runner=1, now=161, limits=Limits())
    assert [(hang.pid, hang.text) for hang in hangs] == [
        (7, "A process of the tests has not ended after t.py::a for 61 s")
    ]
    hangs = find_hangs(notes[:1], silence=0, runner=1, now=281, limits=Limits())
    assert [hang.text for hang in hangs] == ["pytest has waited for the ends of its processes for 181 s"]


def test_a_worker_that_has_no_test_left_waits_for_the_others():
    ended, runner = Note(7, 1.0, "ends", "t.py::a", 60, 10), Note(1, 1.0, "waits", "", 0, 0)
    for other in (Note(8, 1.0, "runs", "t.py::b", 600, 400), Note(8, 1.0, "waits", "t.py::b", 600, 490)):
        assert find_hangs([runner, ended, other], silence=10, runner=1, now=500, limits=Limits()) == []
    hangs = find_hangs([runner, ended], silence=121, runner=1, now=500, limits=Limits())
    assert [(hang.pid, hang.text) for hang in hangs] == [(1, "No process has run a test for 121 s")]
    hangs = find_hangs([replace(runner, doing="closes", since=439), ended], 0, 1, 500, Limits())
    assert [(hang.pid, hang.text) for hang in hangs] == [
        (7, "A process of the tests has not ended after t.py::a for 61 s")
    ]


def test_a_process_that_has_the_number_of_another_is_left_alone(tmp_path):
    note = {"doing": "runs", "test": "t.py::a", "limit": 1, "since": 0, "pid": os.getpid()}
    (tmp_path / f"{os.getpid()}.json").write_text(json.dumps({**note, "born": 7.0}))
    assert watch_tests.read_notes(tmp_path) == []
    born = psutil.Process().create_time()
    (tmp_path / f"{os.getpid()}.json").write_text(json.dumps({**note, "born": born}))
    assert [one.born for one in watch_tests.read_notes(tmp_path)] == [born]
