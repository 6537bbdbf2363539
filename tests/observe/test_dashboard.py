"""The dashboard's server: what it answers, what it refuses, and how it ends. A real server, a real session."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

import hocket
from hocket.observe import history, watching
from tests.engine.test_events import pause

pytest.importorskip("starlette", reason="needs hocket[dashboard]")
pytest.importorskip("uvicorn", reason="needs hocket[dashboard]")

ASKED = ["/api/sessions", "/api/now?pid=1", "/api/events?pid=1&seconds=1&width=100"]
ASKED += ["/api/runs", "/api/run?path=/&width=100", "/api/stack?pid=1&process=1", "/api/flame?pid=1&process=1"]
ASKED += ["/api/parts?pid=1", "/api/searches", "/api/search?path=/&width=100"]
PAGES = ["/", "/static/main.js", "/static/style.css", "/static/vendor/htm-preact.js", "/static/vendor/uplot.js"]
VERBS = ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE", "CONNECT", "get", "BREW"]


@dataclass
class Dashboard:
    """One that runs."""

    process: subprocess.Popen[str]
    port: int
    token: str

    def ask(
        self, path: str, method: str = "GET", headers: dict[str, str] | None = None, *, with_token: bool = True
    ) -> tuple[int, dict[str, str], bytes]:
        """Send a request; return the answer's status, headers and body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        own = {"Host": f"127.0.0.1:{self.port}"}
        if with_token:
            own["Authorization"] = f"Bearer {self.token}"
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in (own | (headers or {})).items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        found = answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        connection.close()
        return found

    def read(self, path: str) -> object:
        status, _, body = self.ask(path)
        assert status == 200, body
        return json.loads(body)


def start(*arguments: str) -> Dashboard:
    process = subprocess.Popen(
        [sys.executable, "-m", "hocket", "dashboard", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert "http://127.0.0.1:" in line, line + process.stdout.read()
    address, token = line.split()[-1].split("/#")
    return Dashboard(process, int(address.rsplit(":", 1)[1]), token)


def end(dashboard: Dashboard) -> str:
    dashboard.process.send_signal(signal.SIGINT)
    said, _ = dashboard.process.communicate(timeout=20)
    return said


@hocket.remote
def double(x: int) -> int:
    return 2 * x


@hocket.remote(num_returns="streaming")
def stop() -> Iterator[int]:
    yield os.getpid()
    while True:
        time.sleep(0.01)


@pytest.fixture(scope="module")
def session() -> Iterator[None]:
    with hocket.init(num_cpus=2):
        hocket.get([double.remote(number) for number in range(100)])
        yield


@pytest.fixture(scope="module")
def dashboard(session: None) -> Iterator[Dashboard]:
    running = start()
    yield running
    end(running)


def test_what_it_tells(dashboard: Dashboard) -> None:
    pid = os.getpid()
    assert {"pid": pid} in dashboard.read("/api/sessions")  # type: ignore[operator]
    now = dashboard.read(f"/api/now?pid={pid}")
    assert now["snapshot"]["driver_pid"] == pid  # type: ignore[index]
    found = dashboard.read(f"/api/events?pid={pid}&seconds=0&width=500")
    counts = found["counts"]  # type: ignore[index]
    assert counts["written"] == counts["kept"] + counts["missed"] + counts["dropped"]
    runs = [
        span
        for lane in found["lanes"]  # type: ignore[index]
        for span in lane["spans"]
        if lane["names"][span[2]] == "double"
    ]
    assert len(runs) == 100


@hocket.remote
def rest(seconds: float) -> None:
    time.sleep(seconds)


def test_windows_end_now_and_what_ran_counts_inside_of_them(session: None) -> None:
    hocket.get(rest.remote(0.4))
    looked = watching.Watch(os.getpid())
    found = looked.draw(os.getpid(), 0.2, 100) or {}
    end = next(one for one in found["names"] if one["name"] == "rest")
    assert end["seconds"] <= 0.2
    assert end["mean"] >= 0.4
    time.sleep(0.3)  # the window is past it
    found = looked.draw(os.getpid(), 0.2, 100) or {}
    assert "rest" not in [one["name"] for one in found["names"]]
    assert found["end"] == pytest.approx(found["now"])
    looked.close()


def test_second_session_of_a_driver_is_another_one() -> None:
    program = """
import sys, hocket

@hocket.remote
def double(x):
    return 2 * x

for _ in range(2):
    hocket.init(num_cpus=1)
    hocket.get([double.remote(x) for x in range(50)])
    print("open", flush=True)
    sys.stdin.readline()
    hocket.shutdown()
"""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdin is not None
        assert driver.stdout is not None
        looked = watching.Watch(driver.pid)
        firsts: list[float] = []
        for _ in range(2):
            assert driver.stdout.readline() == "open\n"
            wait_until(lambda: (looked.draw(driver.pid, 0, 100) or {}).get("first", 0.0) not in (0.0, *firsts))
            found = looked.draw(driver.pid, 0, 100) or {}
            firsts.append(found["first"])
            runs = sum(one["runs"] for one in found["names"] if one["name"] == "double")
            assert runs == 50
            driver.stdin.write("\n")
            driver.stdin.flush()
        looked.close()


def test_picture_of_density_has_every_span(dashboard: Dashboard) -> None:
    total = history.SPANS_IN_FULL + 1000
    hocket.get([pause.remote() for _ in range(total)])
    found = dashboard.read(f"/api/events?pid={os.getpid()}&seconds=0&width=300")
    assert found["is_dense"]  # type: ignore[index]
    assert found["total"] == found["counts"]["kept"]  # type: ignore[index]
    assert found["counts"]["written"] >= total  # type: ignore[index]
    for lane in found["lanes"]:  # type: ignore[index]
        assert len(lane["busy"]) == len(lane["most"]) == 300
        assert all(0 <= share <= 255 for share in lane["busy"])
    assert any(any(lane["busy"]) for lane in found["lanes"])  # type: ignore[index]


@pytest.mark.parametrize("path", PAGES)
def test_pages_need_no_token_and_hold_no_data(dashboard: Dashboard, path: str) -> None:
    status, headers, body = dashboard.ask(path, with_token=False)
    assert status == 200
    assert dashboard.token.encode() not in body
    assert os.fsencode(sys.executable) not in body
    check_headers(headers)


def check_headers(headers: dict[str, str]) -> None:
    assert headers["content-security-policy"].startswith("default-src 'self'")
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] == "no-store"
    assert "access-control-allow-origin" not in headers
    assert "set-cookie" not in headers
    assert "server" not in headers


@pytest.mark.parametrize("path", ASKED)
@pytest.mark.parametrize(
    "authorization",
    [
        "",
        "Bearer",
        "Bearer ",
        "Bearer x",
        "Bearer " + "0" * 64,
        "Basic dTpw",
        "bearer {token}",
        "{token}",
        "Bearer {token}0",
    ],
)
def test_token_must_be_there(dashboard: Dashboard, path: str, authorization: str) -> None:
    given = {"Authorization": authorization.format(token=dashboard.token)} if authorization else {}
    status, headers, body = dashboard.ask(path, headers=given, with_token=False)
    assert (status, b"token" in body) == (401, True)
    check_headers(headers)


@pytest.mark.parametrize("path", ASKED)
def test_token_in_the_query_or_a_cookie_is_none(dashboard: Dashboard, path: str) -> None:
    mark = "&" if "?" in path else "?"
    for name in ("token", "authorization", "access_token"):
        assert dashboard.ask(f"{path}{mark}{name}={dashboard.token}", with_token=False)[0] == 401
    cookie = {"Cookie": f"authorization=Bearer {dashboard.token}"}
    assert dashboard.ask(path, headers=cookie, with_token=False)[0] == 401


@pytest.mark.parametrize("path", [*ASKED, *PAGES])
@pytest.mark.parametrize(
    "host",
    [
        "",
        "evil.example",
        "127.0.0.1",
        "127.0.0.1:1",
        "localhost",
        "[::1]:{port}",
        "127.0.0.1:{port}.evil.example",
        "evil.example:{port}",
        "127.1:{port}",
        "127.0.0.1:{port} ",
        "LOCALHOST.:{port}",
    ],
)
def test_foreign_host(dashboard: Dashboard, path: str, host: str) -> None:
    status, headers, _ = dashboard.ask(path, headers={"Host": host.format(port=dashboard.port)})
    if host.endswith(" "):  # white space around a value is no part of it
        assert status in (200, 404)
        return
    assert status in (400, 403)
    if status == 403:
        check_headers(headers)


@pytest.mark.parametrize("path", [*ASKED, *PAGES])
@pytest.mark.parametrize(
    "origin",
    [
        "null",
        "http://evil.example",
        "http://127.0.0.1",
        "https://127.0.0.1:{port}",
        "http://127.0.0.1:{port}.evil.example",
        "file://",
    ],
)
def test_foreign_origin(dashboard: Dashboard, path: str, origin: str) -> None:
    status, headers, _ = dashboard.ask(path, headers={"Origin": origin.format(port=dashboard.port)})
    assert status == 403
    check_headers(headers)


@pytest.mark.parametrize("path", [*ASKED, *PAGES])
@pytest.mark.parametrize("site", ["cross-site", "same-site", "other"])
def test_request_of_another_site(dashboard: Dashboard, path: str, site: str) -> None:
    assert dashboard.ask(path, headers={"Sec-Fetch-Site": site})[0] == 403


def test_own_origin_is_answered(dashboard: Dashboard) -> None:
    own = {"Origin": f"http://127.0.0.1:{dashboard.port}", "Sec-Fetch-Site": "same-origin"}
    assert dashboard.ask("/api/sessions", headers=own)[0] == 200


@pytest.mark.parametrize("path", [*ASKED, *PAGES])
@pytest.mark.parametrize("verb", VERBS)
def test_other_verbs(dashboard: Dashboard, path: str, verb: str) -> None:
    assert dashboard.ask(path, verb)[0] in (400, 405)


@pytest.mark.parametrize(
    "path",
    [
        "/x/../api/sessions",
        "/api/../api/sessions",
        "//api/sessions",
        "/api//sessions",
        "/api/sessions/",
        "/API/sessions",
        "/api/%73essions",
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/static/vendor/../main.js",
        "/static/",
        "/static",
        "/api",
        "/docs",
        "/openapi.json",
        "/..",
        "/.",
        "/index.html",
        "/static/index.html",
        "/\\",
        "/api/sessions;x",
        "http://127.0.0.1/api/sessions",
        "*",
    ],
)
def test_paths_are_taken_by_the_letter(dashboard: Dashboard, path: str) -> None:
    assert dashboard.ask(path, with_token=False)[0] in (400, 401, 404, 405)
    assert dashboard.ask(path)[0] in (400, 404, 405)


@pytest.mark.parametrize("path", [*ASKED, *PAGES])
def test_upgrade_to_a_websocket(dashboard: Dashboard, path: str) -> None:
    wanted = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    assert dashboard.ask(path, headers=wanted)[0] == 405


@pytest.mark.parametrize("name", ["Host", "Authorization", "Origin"])
def test_header_that_is_there_twice(dashboard: Dashboard, name: str) -> None:
    value = {
        "Host": f"127.0.0.1:{dashboard.port}",
        "Authorization": f"Bearer {dashboard.token}",
        "Origin": f"http://127.0.0.1:{dashboard.port}",
    }
    lines = [f"{key}: {value[key]}" for key in ("Host", "Authorization", "Origin")]
    lines.insert(0, f"{name}: {value[name]}")
    with socket.create_connection(("127.0.0.1", dashboard.port), timeout=10) as sock:
        sock.sendall("\r\n".join(["GET /api/sessions HTTP/1.1", *lines, "", ""]).encode())
        assert sock.recv(4096).split()[1] == b"400"


@pytest.mark.parametrize(
    "query",
    ["", "pid=", "pid=x", "pid=1", "pid=-1", "pid=99999999999999999999", "pid=1e3", "pid=%00"],
)
def test_odd_pids(dashboard: Dashboard, query: str) -> None:
    process = query.replace("pid", "process")
    own = f"pid={os.getpid()}&{process}"
    for path in (
        f"/api/now?{query}",
        f"/api/events?{query}&seconds=1&width=10",
        f"/api/stack?{own}",
        f"/api/flame?{own}",
        f"/api/stack?{query}&process={os.getpid()}",
    ):
        assert dashboard.ask(path)[0] in (400, 404)


@pytest.mark.parametrize("query", ["", "path=/", "path=/etc&width=10", "path=..&width=10", "path=&width=0", "width=9"])
def test_no_folder_is_opened_that_is_not_looked_at(dashboard: Dashboard, query: str) -> None:
    assert dashboard.ask(f"/api/run?{query}")[0] in (400, 404)


def test_what_a_process_does(dashboard: Dashboard) -> None:
    begun = stop.remote()
    pid = hocket.get(next(begun))
    asked = f"pid={os.getpid()}&process={pid}"
    stack = dashboard.read(f"/api/stack?{asked}")
    assert "in stop" in str(stack)
    assert "hocket/engine" not in str(stack), "what brought the task is left out"
    samples = dashboard.read(f"/api/flame?{asked}")
    assert isinstance(samples, dict)
    assert all(where.startswith("stop (") for where in samples)
    os.kill(pid, signal.SIGSTOP)
    try:
        assert "is stopped" in str(dashboard.read(f"/api/stack?{asked}"))
        assert dashboard.ask(f"/api/flame?{asked}")[0] == 404
    finally:
        os.kill(pid, signal.SIGCONT)
    hocket.cancel(begun)


@pytest.mark.parametrize(
    "query",
    [
        "",
        "seconds=1",
        "width=1",
        "seconds=nan&width=1",
        "seconds=inf&width=1",
        "seconds=-1&width=1",
        "seconds=1&width=0",
        "seconds=1&width=9000",
        "seconds=1&width=1.5",
        "seconds=1&width=1&end=nan",
        "seconds=1&width=1&end=x",
    ],
)
def test_odd_pictures(dashboard: Dashboard, query: str) -> None:
    assert dashboard.ask(f"/api/events?pid={os.getpid()}&{query}")[0] == 400


@pytest.mark.parametrize("end_at", ["0", "-1e300", "1e300", "1"])
def test_stretches_without_events(dashboard: Dashboard, end_at: str) -> None:
    status, _, body = dashboard.ask(f"/api/events?pid={os.getpid()}&seconds=1&width=10&end={end_at}")
    assert status == 200
    assert json.loads(body)["total"] == 0


@pytest.mark.parametrize(
    "number", [300, pytest.param(10_000, marks=[pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(300)])]
)
def test_many_connections_leave_descriptors_flat(dashboard: Dashboard, number: int) -> None:
    server = psutil.Process(dashboard.process.pid)
    dashboard.read("/api/sessions")
    before = server.num_fds()
    for at in range(number):
        with socket.create_connection(("127.0.0.1", dashboard.port), timeout=10) as sock:
            if at % 3 == 0:
                sock.sendall(b"GET /api/sessions HTTP/1.1\r\nHost: x\r\n\r\n")
                sock.recv(100)
            elif at % 3 == 1:
                sock.sendall(b"\x16\x03\x01 no HTTP at all\r\n\r\n")
    dashboard.read("/api/sessions")
    assert server.num_fds() <= before + 3


def test_silent_connections_are_bounded_and_cut(dashboard: Dashboard) -> None:
    held = []
    try:
        for number in range(200):
            sock = socket.create_connection(("127.0.0.1", dashboard.port), timeout=30)
            if number % 2:
                sock.sendall(b"GET /api/sessions HTTP/1.1\r\nHost:")
            held.append(sock)
        wait_until(lambda: psutil.Process(dashboard.process.pid).num_fds() < 100)
        for sock in held:
            with contextlib.suppress(ConnectionResetError):
                assert sock.recv(1) == b""
    finally:
        for sock in held:
            sock.close()
    dashboard.read("/api/sessions")


def wait_until(is_true: Callable[[], bool], limit_s: float = 5.0) -> None:
    deadline = time.monotonic() + limit_s
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def list_listeners(pid: int) -> list[tuple[str, int]]:
    return [
        connection.laddr for connection in psutil.Process(pid).net_connections("inet") if connection.status == "LISTEN"
    ]


def test_one_port_on_loopback_and_none_in_the_session(dashboard: Dashboard) -> None:
    assert list_listeners(dashboard.process.pid) == [("127.0.0.1", dashboard.port)]
    assert list_listeners(os.getpid()) == []


OTHER_USER = """
import http.client, os, sys, urllib.request
"x".encode("idna")  # what is imported late may not be readable for the other user
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
driver, server, port = map(int, sys.argv[1:])
got = []
for pid in (driver, server):
    try:
        got += os.listdir(f"/proc/{pid}/fd")
    except PermissionError:
        pass
for path in ("/api/sessions", f"/api/now?pid={driver}"):
    try:
        got.append(urllib.request.urlopen(f"http://127.0.0.1:{port}{path}").read())
    except OSError as error:
        assert "401" in str(error), error
print("got", got)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user, which root alone may")
def test_another_user_gets_nothing(dashboard: Dashboard) -> None:
    given = map(str, (os.getpid(), dashboard.process.pid, dashboard.port))
    found = subprocess.run(
        [sys.executable, "-c", OTHER_USER, *given], capture_output=True, text=True, check=True, cwd="/"
    )
    assert found.stdout == "got []\n"


def test_ports_before_during_and_after() -> None:
    def list_family() -> set[int]:
        family = [psutil.Process(), *psutil.Process().children(recursive=True)]
        return {port for member in family for _, port in list_listeners(member.pid)}

    before = list_family()
    driver = subprocess.Popen([sys.executable, "-c", SESSION], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    assert driver.stdout.readline() == "open\n"
    assert list_family() == before, "a session listens nowhere"
    running = start(str(driver.pid))
    assert list_family() - before == {running.port}
    end(running)
    driver.communicate("\n", timeout=20)
    assert list_family() == before
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", running.port), timeout=5)


def test_a_folder_without_runs(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hocket", "dashboard", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    assert ended.returncode == 1
    assert "There is no run or search in" in ended.stdout
    assert "Give Result.path" in ended.stdout


# --- its life ---------------------------------------------------------------------------------------------------------

SESSION = """
import sys, hocket
hocket.init(num_cpus=1)
hocket.get(hocket.remote(lambda: 1).remote())
print("open", flush=True)
sys.stdin.readline()
"""


def test_ends_with_its_session() -> None:
    driver = subprocess.Popen([sys.executable, "-c", SESSION], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    assert driver.stdout.readline() == "open\n"
    running = start(str(driver.pid))
    assert running.read("/api/sessions") == [{"pid": driver.pid}]
    driver.communicate("\n", timeout=20)
    said, _ = running.process.communicate(timeout=20)
    assert running.process.returncode == 0
    assert f"The session of pid {driver.pid} is over." in said


def test_killed_driver_ends_it_too() -> None:
    driver = subprocess.Popen([sys.executable, "-c", SESSION], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    assert driver.stdout.readline() == "open\n"
    running = start(str(driver.pid))
    driver.kill()
    driver.communicate()
    running.process.communicate(timeout=20)
    assert running.process.returncode == 0


def test_ctrl_c_ends_it(session: None) -> None:
    running = start()
    said = end(running)
    assert set(said.splitlines()) - {""} <= {"Anyone who has this address may use the dashboard until Ctrl-C ends it."}
    assert running.process.returncode == 0
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", running.port), timeout=5)


def test_pid_without_a_session() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hocket", "dashboard", "1"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "There is no session of yours whose driver has the pid 1." in done.stdout


def test_port_that_is_taken(dashboard: Dashboard) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hocket", "dashboard", "--port", str(dashboard.port)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "Address already in use" in done.stderr
    assert "Traceback" not in done.stderr


def test_vendored_files_are_those_that_are_listed() -> None:
    import hashlib

    folder = Path(hocket.__file__).parent / "observe" / "vendor"
    listed = {name: digest for digest, name in map(str.split, (folder / "SHA256SUMS").read_text().splitlines())}
    found = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.iterdir()}
    del found["SHA256SUMS"], found["README.md"]
    assert found == listed
