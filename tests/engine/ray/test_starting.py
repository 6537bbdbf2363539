"""A Ray that a session starts: closed to strangers, quiet, and gone with the session."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import ray
from ray import job_submission

from hocket import _base, exceptions
from hocket.engine.ray import access, connection, sweeper
from hocket.testing import Leftovers
from tests.engine.ray import conftest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120), conftest.UNTIDY]

TOKEN_FILE = Path.home() / ".ray" / "auth_token"


@pytest.fixture(scope="module")
def started() -> Iterator[connection.Connection]:
    """A Ray with all of its parts, the dashboard included."""
    token_file = TOKEN_FILE.read_bytes() if TOKEN_FILE.exists() else None
    environment, handler = dict(os.environ), signal.getsignal(signal.SIGTERM)
    processes = Leftovers.look().processes
    request = connection.Request(
        num_cpus=2,
        resources={"camera": 2},
        labels={"disk": "ssd"},
        namespace="here",
        options={"include_dashboard": True},
    )
    opened = connection.connect(request)
    assert dict(os.environ) == environment
    assert signal.getsignal(signal.SIGTERM) is handler
    yield opened
    folder = find_folder()
    opened.close()
    opened.close()
    assert not ray.is_initialized()
    assert Leftovers.look().processes <= processes
    assert sweeper.list_processes(folder, os.getpid()) == []
    assert not Path(folder).exists()
    assert (TOKEN_FILE.read_bytes() if TOKEN_FILE.exists() else None) == token_file


def find_folder() -> str:
    """Where the running Ray has its files."""
    return str(Path(ray._private.worker._global_node.get_session_dir_path()).parent)


def list_processes() -> list[psutil.Process]:
    """This process and all of Ray's."""
    return [psutil.Process(), *psutil.Process().children(recursive=True)]


@ray.remote
def look() -> dict[str, str | list[str]]:
    """What a worker finds around it."""
    return {"token": os.environ["RAY_AUTH_TOKEN"], "path": sys.path, **dict(os.environ.items())}


def test_what_it_is(started: connection.Connection) -> None:
    assert started.is_owner
    assert started.namespace == "here"
    assert started.address.startswith("127.0.0.1:")
    assert started.dashboard_url.startswith("http://127.0.0.1:")
    assert started.environment == {}
    total = ray.cluster_resources()
    assert (total["CPU"], total["camera"]) == (2, 2)
    assert ray.nodes()[0]["Labels"]["disk"] == "ssd"


def test_nothing_listens_beyond_this_machine(started: connection.Connection) -> None:
    ray.get(look.remote())
    listening = conftest.list_listening(list_processes())
    assert {"gcs_server", "raylet", "ray::DashboardAgent", "ray::IDLE"} <= {name[:19] for name in listening}
    assert {ip for ips in listening.values() for ip in ips} <= set(conftest.LOOPBACK)


def test_token_is_handed_over_by_environment_only(started: connection.Connection) -> None:
    token = ray.get(look.remote())["token"]
    assert len(token) == 64
    assert access.TOKEN_VARIABLE not in os.environ
    assert not any(token in part for process in list_processes() for part in process.cmdline())
    written = [
        path for path in Path(find_folder()).rglob("*") if path.is_file() and token.encode() in path.read_bytes()
    ]
    assert written == []


def test_no_usage_is_reported(started: connection.Connection) -> None:
    assert ray.get(look.remote())["RAY_USAGE_STATS_ENABLED"] == "0"


def test_workers_import_what_the_driver_does(started: connection.Connection) -> None:
    path = ray.get(look.remote())["path"]
    assert str(connection.PACKAGE.parent) in path
    assert str(Path(__file__).parents[3]) in path  # pytest's own entry


def submit_job(url: str, token: str) -> int:
    """Hand a command to the dashboard as a job and return the status of the answer."""
    request = urllib.request.Request(
        f"{url}/api/jobs/",
        data=json.dumps({"entrypoint": "true"}).encode(),
        headers={"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})},
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_job_submission_needs_the_token(started: connection.Connection) -> None:
    token = ray.get(look.remote())["token"]
    assert submit_job(started.dashboard_url, "") == 401
    assert submit_job(started.dashboard_url, token[::-1]) == 403
    assert submit_job(started.dashboard_url, token) == 200


JOB = """
import os, helper
import hocket

@hocket.remote
def work():
    return helper.answer(), os.environ["COLOUR"], os.environ["SHAPE"]

with hocket.init(runtime_env={"env_vars": {"SHAPE": "round"}}) as context:
    print(context["address"], *hocket.get(work.remote()))
"""


@pytest.mark.parametrize("modules", [(), (str(connection.PACKAGE),)])
def test_a_submitted_program_joins_with_what_the_job_brought(
    started: connection.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, modules: tuple[str, ...]
) -> None:
    """Ray refuses a program that names a field of the job's runtime environment again, and ours names two of them."""
    (tmp_path / "main.py").write_text(JOB)
    (tmp_path / "helper.py").write_text("def answer(): return 42")
    monkeypatch.setenv(access.MODE_VARIABLE, "token")
    monkeypatch.setenv(access.TOKEN_VARIABLE, ray.get(look.remote())["token"])
    environment = {
        "working_dir": str(tmp_path),
        "env_vars": {"HOCKET_ADDRESS": started.address, "COLOUR": "red", "PYTHONPATH": str(connection.PACKAGE.parent)},
        **({"py_modules": list(modules)} if modules else {}),
    }
    jobs = job_submission.JobSubmissionClient(started.dashboard_url)
    job_id = jobs.submit_job(entrypoint=f"{sys.executable} main.py", runtime_env=environment)
    while not (status := jobs.get_job_status(job_id)).is_terminal():
        time.sleep(0.2)
    log = jobs.get_job_logs(job_id)
    assert status == job_submission.JobStatus.SUCCEEDED, log
    assert f"{started.address} 42 red round" in log


def test_stranger_without_the_token(started: connection.Connection, tmp_path: Path) -> None:
    script = (
        f"from hocket.engine.ray import connection; connection.connect(connection.Request(address={started.address!r}))"
    )
    found = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"The Ray cluster at {started.address!r} takes only drivers with its token, but " in found.stderr


def test_ray_that_was_there_is_taken_over(started: connection.Connection) -> None:
    for address in ("", "auto", started.address):
        taken = connection.connect(connection.Request(address=address))
        assert (taken.address, taken.namespace, taken.is_owner) == (started.address, "here", False)
        taken.close()
    assert ray.is_initialized()
    with pytest.raises(
        ValueError,
        match=r"connected this process to the Ray at '127.*so it cannot connect to 'there:1'\. .*ray\.shutdown\(\)",
    ):
        connection.connect(connection.Request(address="there:1"))
    asked = connection.Request(num_cpus=2, num_gpus=0, resources={"camera": 2}, labels={"disk": "ssd"})
    connection.connect(asked).close()  # it has them
    with pytest.raises(
        ValueError, match=r"received 3 as the amount of 'CPU', but .*, has 2\. Leave it out, or call ray\.shutdown"
    ):
        connection.connect(connection.Request(num_cpus=3))
    with pytest.raises(ValueError, match=r"received 1 as the amount of 'lamp', but .*, has 0\."):
        connection.connect(connection.Request(resources={"lamp": 1}))
    with pytest.raises(ValueError, match=r"received \{'disk': 'slow'\}, which cannot be set on the running Ray"):
        connection.connect(connection.Request(labels={"disk": "slow"}))
    with pytest.raises(
        ValueError, match=r"received \{'object_spilling_directory': '/spill'\}, which cannot be set on the running Ray"
    ):
        connection.connect(connection.Request(spill_folder="/spill"))


def test_other_version_on_the_workers(started: connection.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_base, "__version__", "9.9")
    with pytest.raises(
        exceptions.VersionMismatchError,
        match=r"has Hocket 0.*, but this process has Hocket 9\.9\. .*pip install hocket==0",
    ):
        connection.connect(connection.Request())


SCRIPT = """
import os, sys
from hocket.engine.ray import connection
opened = connection.connect(connection.Request(num_cpus=1))
import ray, helper

@ray.remote
def work():
    import helper
    print("printed by a worker")
    return helper.answer()

assert ray.get(work.remote()) == 42
folder = os.path.dirname(ray._private.worker._global_node.get_session_dir_path())
print(folder, flush=True)
{end}
"""


@pytest.mark.parametrize("end", ["opened.close()", "", "os.kill(os.getpid(), 15)", "os.kill(os.getpid(), 9)"])
def test_driver_elsewhere(run_driver: conftest.RunDriver, end: str) -> None:
    done = run_driver(SCRIPT.format(end=end), {"helper.py": "def answer(): return 42"})
    assert done.stderr == ""
    assert "printed by a worker" in done.stdout or end.startswith("os.kill")
    assert done.returncode == -int(end[-3:-1].strip(" ,")) if end.startswith("os.kill") else done.returncode == 0
    folder = next(line for line in done.stdout.splitlines() if "hocket-ray-" in line)
    sweepers = [one for one in psutil.process_iter(["cmdline"]) if folder in (one.info["cmdline"] or ())]
    assert psutil.wait_procs(sweepers, timeout=20)[1] == []
    assert sweeper.list_processes(folder, 0) == []
    assert not Path(folder).exists()


SESSION = """
import hocket, helper

@hocket.remote
def work(x):
    print("printed by a worker")
    return helper.answer() + x

with hocket.init(engine="ray", num_cpus=1, namespace="here", include_dashboard=True) as context:
    print(context["engine"], context["namespace"], context["address"].rpartition(":")[0], context.dashboard_url[:16])
    print(hocket.get(work.remote(1)))
print(hocket.is_initialized())
"""


def test_session(run_driver: conftest.RunDriver) -> None:
    done = run_driver(SESSION, {"helper.py": "def answer(): return 42"})
    assert done.stderr == ""
    lines = [line for line in done.stdout.splitlines() if "printed by a worker" not in line]
    assert lines == ["ray here 127.0.0.1 http://127.0.0.1", "43", "False"]
    assert "printed by a worker" in done.stdout


def test_sockets_of_ray_s_own_threads_are_no_leftovers_of_a_session() -> None:
    assert "ray._raylet" in sys.modules
    before = Leftovers.look()
    with socket.socket(socket.AF_INET6, socket.SOCK_STREAM):
        assert before.list_new() == []
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert [name.split(" -> ")[0] for name in before.list_new()] == [
            f"descriptor {fd}" for fd in sorted((ours.fileno(), theirs.fileno()), key=str)
        ]


def test_no_cpu_is_what_was_asked_for(run_driver: conftest.RunDriver) -> None:
    done = run_driver(
        "import hocket\n"
        "hocket.init(engine='ray', num_cpus=0, num_gpus=0)\n"
        "print(hocket.cluster_resources().get('CPU', 0))\n"
        "print(hocket.get(hocket.remote(num_cpus=0)(lambda: 'runs').remote()))\n"
        "try:\n"
        "    hocket.remote(num_cpus=1)(print).remote()\n"
        "except hocket.exceptions.TaskUnschedulableError:\n"
        "    print('refused')\n"
    )
    assert (done.returncode, done.stdout) == (0, "0\nruns\nrefused\n"), done.stderr
