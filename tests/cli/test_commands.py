"""`hocket status`, `bench` and `doctor`."""

from __future__ import annotations

import io
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest
from rich import console
from tests.conftest import RunScript

import hocket
from hocket.cli import bench, completion, doctor, main, status
from hocket.engine import node
from hocket.engine.local import endpoint
from hocket.observe import sessions
from hocket.testing import Leftovers
from hocket.testing.suites.programs import wait_until

DRIVER = """
import signal, threading
import numpy as np
import hocket
from hocket.util import state
hocket.init(num_cpus=2, namespace="kitchen")

@hocket.remote
def stir():
    threading.Event().wait()

@hocket.remote
class Pot:
    def get(self):
        return 1

@hocket.remote(max_retries=0)
def burn():
    raise ValueError("too hot [bold]for markup[/bold]")

pot = Pot.options(name="big").remote()
hocket.get(pot.get.remote())
hocket.wait([burn.remote()])
soup = hocket.put(np.zeros(1_000_000))
refs = [stir.remote() for _ in range(3)]
while len(state.list_tasks(filters=[("state", "=", "RUNNING")])) < 2:
    hocket.wait([hocket.put(0)], timeout=0.01)
print("cooking", flush=True)
{last}
"""


@pytest.fixture
def cook(start_script: RunScript) -> subprocess.Popen[str]:
    """A driver that waits in `get`."""
    driver = start_script(DRIVER.format(last="hocket.get(refs)"))
    assert driver.stdout is not None
    assert driver.stdout.readline() == "cooking\n", driver.communicate()[1]
    return driver


def find_session(pid: int, text: str) -> dict[str, Any]:
    return next(one for one in json.loads(text) if one["driver_pid"] == pid)


# --- status -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_status_shows_what_another_process_runs(
    cook: subprocess.Popen[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["status", "--json"]) == 0
    session = find_session(cook.pid, capsys.readouterr().out)
    snapshot = session["snapshot"]
    assert session["problem"] is None
    assert (snapshot["namespace"], snapshot["driver_pid"]) == ("kitchen", cook.pid)
    tasks = {(row["func_or_class_name"], row["state"]): row["count"] for row in snapshot["tasks"]}
    assert tasks["stir", "RUNNING"] == 2
    assert tasks["stir", "PENDING_NODE_ASSIGNMENT"] == 1
    assert tasks["burn", "FAILED"] == 1
    assert [(actor["class_name"], actor["name"], actor["state"]) for actor in snapshot["actors"]] == [
        ("Pot", "big", "ALIVE")
    ]
    assert snapshot["resources"]["total"]["CPU"] == 2.0
    assert snapshot["resources"]["free"]["CPU"] == 0.0
    assert snapshot["statistics"]["shared_bytes"] >= 8_000_000
    assert [(error["type"], error["name"]) for error in snapshot["errors"]["last"]] == [("ValueError", "burn")]
    running = [worker for worker in snapshot["workers"] if worker["task_name"] == "stir"]
    assert len(running) == 2
    assert all(worker["task_seconds"] > 0 for worker in running)
    by_role: dict[str, list[int]] = {}
    for process in session["processes"]:
        by_role.setdefault(process["role"], []).append(process["pid"])
        assert process["rss_bytes"] > 0
    assert by_role["driver"] == [cook.pid]
    assert by_role["guardian"] == [session["guardian_pid"]]
    assert set(by_role["worker"]) == {worker["pid"] for worker in snapshot["workers"]}


@pytest.mark.slow
@pytest.mark.parametrize("last", ["while True: pass", "import time; time.sleep(1000)", "threading.Event().wait()"])
def test_status_is_answered_whatever_the_driver_does(start_script: RunScript, last: str) -> None:
    driver = start_script(DRIVER.format(last=last))
    assert driver.stdout is not None
    driver.stdout.readline()
    for _ in range(3):
        assert endpoint.ask(driver.pid, 10.0)["namespace"] == "kitchen"


@pytest.mark.slow
def test_status_for_people_names_everything(cook: subprocess.Popen[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["status"]) == 0
    text = capsys.readouterr().out
    for wanted in (
        f"Session of pid {cook.pid}",
        "2 of 2 CPU in use",
        "stir",
        "Pot",
        "ALIVE",
        "<string>:",
        "together",
        "8.0 MiB",
        "1 errors; the latest:",
        "burn: ValueError: too hot [bold]for markup[/bold]",
    ):
        assert wanted in text, wanted


def test_status_says_where_to_look_for_sessions_on_ray(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    found = shutil.which("sleep")
    assert found is not None
    named = shutil.copy(found, tmp_path / "raylet")  # it is known by its name
    with subprocess.Popen([named, "60"]) as process:
        try:
            wait_until(lambda: psutil.Process(process.pid).name() == "raylet")
            assert main.main(["status"]) == 0
        finally:
            process.kill()
    assert "Ray runs on this machine. Sessions on Ray are not shown here: see `ray status`" in capsys.readouterr().out


@pytest.mark.slow
def test_status_of_a_silent_driver_shows_its_processes(
    cook: subprocess.Popen[str], capsys: pytest.CaptureFixture[str]
) -> None:
    cook.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, cook.pid, os.WSTOPPED)  # until it has, it may answer
    try:
        assert main.main(["status", "--timeout", "0.05"]) == 0
    finally:
        cook.send_signal(signal.SIGCONT)
    text = capsys.readouterr().out
    assert f"No answer: the driver (pid {cook.pid}) did not answer within 0.05 s" in text
    assert "guardian" in text


@pytest.mark.slow
def test_many_look_at_once(cook: subprocess.Popen[str]) -> None:
    found: list[str] = []

    def look() -> None:
        found.extend(endpoint.ask(cook.pid, 20.0)["namespace"] for _ in range(20))

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["kitchen"] * 80


def test_looking_leaves_nothing_behind(session: hocket.SessionContext) -> None:
    hocket.get(hocket.remote(abs).remote(-1))
    during = Leftovers.look()
    for _ in range(5):
        assert endpoint.ask(os.getpid(), 10.0)["driver_pid"] == os.getpid()
    assert during.list_new() == []


def test_children_are_found_where_a_thread_ends_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        threads = [path.name for path in Path("/proc/self/task").iterdir()]
        monkeypatch.setattr(os, "listdir", lambda path: ["4194304", *threads])  # more than any thread's number
        assert child.pid in endpoint.list_children(os.getpid())
        child.kill()


def test_process_without_a_session_has_no_window() -> None:
    with pytest.raises(LookupError, match=f"the process {os.getpid()} has no Hocket session"):
        endpoint.ask(os.getpid(), 0.1)


def test_no_session_is_said_in_a_sentence(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "list_sessions", list)
    assert main.main(["status"]) == 0
    assert "You have no session with workers on this machine." in capsys.readouterr().out
    assert main.main(["status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_snapshot_that_cannot_be_built_says_why(
    session: hocket.SessionContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    hocket.get(hocket.remote(abs).remote(-1))
    engine: Any = hocket.core.session.get_engine()

    def fail() -> dict[str, Any]:
        raise RuntimeError("no view")

    monkeypatch.setattr(engine.view, "statistics", fail)
    assert endpoint.ask(os.getpid(), 10.0) == {"failure": "RuntimeError: no view"}
    out = console.Console(file=io.StringIO(), width=120)
    found = next(one for one in endpoint.list_sessions() if one.driver_pid == os.getpid())
    status.show(sessions.look(found, 10.0), out)
    assert "it could not describe itself (RuntimeError: no view)" in out.file.getvalue()  # type: ignore[attr-defined]


def test_holders_by_source_line_are_shown() -> None:
    out = console.Console(file=io.StringIO(), width=120)
    holders = [(f"train.py:{line}", line << 20, 1) for line in range(12, 0, -1)]
    built = status._build_object_table(
        {"objects": 20, "shared_bytes": 78 << 20, "spilled_bytes": 5 << 20, "holders": holders}
    )
    assert built is not None
    out.print(built)
    lines = [line.split() for line in out.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    assert ["train.py:12", "1", "12.0", "MiB"] in lines
    assert ["other", "lines", "2", "3.0", "MiB"] in lines
    assert ["small", "values,", "actors", "8"] in lines
    assert ["together", "20", "78.0", "MiB,", "5.0", "MiB", "on", "disk"] in lines


# --- doctor, bench ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_doctor_finds_this_machine_fit(capsys: pytest.CaptureFixture[str]) -> None:
    before = Leftovers.look()
    assert main.main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    checks = {check["name"]: check for check in report["checks"]}
    assert report["ok"] is True
    assert f"hocket {hocket.__version__}" in checks["packages"]["detail"]
    for step in ("a task runs", "an actor counts", "64.0 MiB travel", "a death is explained", "the session closes"):
        assert checks[step]["is_ok"], checks[step]
    assert before.list_new() == []


@pytest.mark.slow
def test_doctor_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert "a death is explained" in text
    assert "Everything works." in text


def test_doctor_names_what_fails_and_the_remedy(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: str, flags: int) -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "memfd_create", refuse)
    assert main.main(["doctor"]) == 1
    text = " ".join(capsys.readouterr().out.split())
    assert "FAILED memfd_create [Errno 1] Operation not permitted -> Large values are kept in memfds" in text
    assert "FAILED a task runs" in text, "the self-test stops at the first step that fails"
    assert "an actor counts" not in text
    assert not hocket.is_initialized()


def test_doctor_tells_limits_as_a_session_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "count_memory", lambda: 2**30)
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, resource.RLIM_INFINITY))
    checks = {check.name: check for check in doctor.check_machine()}
    assert checks["memory"].detail.endswith("cgroup limit 1.0 GiB")
    assert checks["open files"].detail == "1,024 now, no limit at most"


def test_doctor_leaves_an_open_session_alone() -> None:
    with hocket.init(num_cpus=1, engine="inprocess"):
        assert [check.detail for check in doctor.run_self_test()] == ["left out: this process has a session open"]
        assert hocket.is_initialized()


@pytest.mark.slow
def test_bench_prints_every_operation(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["bench", "--quick", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    rows = {row["name"]: row for row in report["results"]}
    assert len(rows) == 10
    assert all(0 < row["lowest"] <= row["median"] <= row["highest"] for row in rows.values())


@pytest.mark.slow
def test_bench_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["bench", "--quick"]) == 0
    assert "tasks, 1,000 in flight" in capsys.readouterr().out


def test_rates_are_written_as_people_read_them() -> None:
    assert [bench.format_rate(value) for value in (1234567.0, 12.345, 0.5)] == ["1,234,567", "12.3", "0.5"]


# --- the command line -------------------------------------------------------------------------------------------------


def test_commands_load_nothing_before_they_are_asked_for() -> None:
    program = """
import sys
from hocket.cli import main
main.build_parser()
print(*sorted({"rich", "psutil", "hocket.cli.status", "hocket.cli.bench", "hocket.cli.doctor"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("hocket st", ["status"]),
        ("hocket run --wor", ["--workers"]),
        ("hocket run --no-p", ["--no-python"]),
        ("hocket status --t", ["--timeout"]),
        ("hocket nonsense --t", []),
    ],
)
def test_bash_completes_words(line, words):
    program = (
        completion.write(main.build_parser(), "bash")
        + f"COMP_WORDS=({line}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _hocket; echo ${{COMPREPLY[@]}}"
    )
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == words


@pytest.mark.parametrize("shell", ["bash", "fish", "zsh"])
def test_each_shell_gets_all_commands(shell, capsys):
    assert main.main(["completion", shell]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("run", "status", "doctor", "demo", "bench", "workers"))


@pytest.mark.parametrize("name", ["demo", "status", "bench", "doctor"])
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main.main([name, "--help"])
    assert f"usage: hocket {name}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["dashboard", "--port", "65536"], "0 or more and at most 65535, but received '65536'"),
        (["demo", "--seed", "9" * 30], "0 or more and at most 4294967295, but received"),
        (["status", "--timeout", "nan"], "must be a number of seconds, 0 or more, but received 'nan'"),
    ],
)
def test_numbers_out_of_range(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main.main(arguments)
    assert message in capsys.readouterr().err


def test_dashboard_names_its_extra(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main.main(["dashboard"]) == 1
    assert (
        "needs starlette and uvicorn, and 'starlette' cannot be imported. Run pip install 'hocket[dashboard]'."
        in capsys.readouterr().err
    )


@pytest.mark.slow
def test_demo_refuses_what_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main.main(["demo", "--quiet", "--output", str(tmp_path / "file")]) == 1
    assert "file', which is a file. Give another name." in capsys.readouterr().err
    assert main.main(["demo", "--quiet", "--workers", "9999999", "--output", str(tmp_path / "new")]) == 1
    assert "--workers 9999999 is more than" in capsys.readouterr().err
    hocket.shutdown()


# --- pipes ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["status"], ["runs", "."], ["--version"]], ids=" ".join)
def test_closed_output(arguments: list[str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hocket", *arguments]
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *command], cwd=tmp_path, stderr=subprocess.PIPE, text=True, check=False
    )
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [["status"], ["status", "--json"], ["doctor", "--json"], ["completion", "bash"], ["--help"], ["--version"]],
    ids=" ".join,
)
def test_output_that_nobody_reads_ends_the_command_silently(arguments: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "hocket", *arguments], stdout=writer, stderr=subprocess.PIPE, text=True, check=False
        )
    finally:
        os.close(writer)
    assert done.stderr == ""
    assert done.returncode in (0, 1, 141)  # argparse has no error there, and rich has 1
