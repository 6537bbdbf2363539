"""Joining a cluster: what has to agree, what travels, and what every mistake says."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import ray
from ray._private import services, utils

from hocket import exceptions
from hocket.engine.ray import access, addresses, connection, packages
from hocket.testing.cluster import Cluster
from tests import strangers
from tests.engine.ray import conftest

shared_place = strangers.shared_place

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120), conftest.UNTIDY]

TOKEN = access.TOKEN_VARIABLE


def find_free_port() -> int:
    """Return a port at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


CLIENT_PORT = find_free_port()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two nodes, and a port for drivers from outside."""
    with Cluster(nodes=[{"ray_client_server_port": CLIENT_PORT}, {"resources": {"far": 1}}]) as opened:
        yield opened


@pytest.fixture
def joined(cluster: Cluster) -> Iterator[connection.Connection]:
    """This process as a driver of the cluster."""
    environment = dict(os.environ)
    opened = connection.connect(connection.Request(address=cluster.address, namespace="here"))
    assert dict(os.environ) == environment
    yield opened
    opened.close()
    assert not ray.is_initialized()


def test_driver_of_a_cluster(cluster: Cluster, joined: connection.Connection) -> None:
    assert (joined.address, joined.namespace, joined.is_owner) == (cluster.address, "here", False)
    assert len(ray.nodes()) == 2
    (package,) = joined.environment["py_modules"]
    assert package.startswith("gcs://")


def test_joining_a_cluster_leaves_it_running(cluster: Cluster) -> None:
    for address in (cluster.address, cluster.address.replace("127.0.0.1", "localhost")):
        connection.connect(connection.Request(address=address)).close()
    assert cluster.count_nodes() == 2


LOOK = """
import os, sys
from hocket.engine.ray import connection

opened = connection.connect(connection.Request(address=os.environ["WHERE"]))
import ray, helper

@ray.remote(resources={"far": 1})
def work():
    import hocket, helper
    return helper.answer(), hocket.__file__, helper.__file__, os.getcwd(), ray.get_runtime_context().get_node_id()

print(*ray.get(work.remote()), sep="\\n")
opened.close()
"""


@pytest.mark.parametrize("form", ["{}", f"ray://127.0.0.1:{CLIENT_PORT}"], ids=["node", "client"])
def test_package_and_script_folder_reach_the_nodes(cluster: Cluster, run_driver: conftest.RunDriver, form: str) -> None:
    """The node runs the copies that were sent to it, though this machine has the originals."""
    address = form.format(cluster.address)
    done = run_driver(LOOK, {"helper.py": "def answer(): return 42"}, WHERE=address)
    assert done.returncode == 0, done.stderr
    answer, package, module, folder, node_id = done.stdout.splitlines()
    assert answer == "42"
    assert node_id == cluster.nodes[1].node_id
    for place in (package, module, folder):
        assert place.startswith(cluster.nodes[1].folder)


def test_user_names_another_folder(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "only_here.py").write_text("ANSWER = 42")
    environment = {"working_dir": str(tmp_path), "env_vars": {"HOCKET_COLOUR": "red"}}
    opened = connection.connect(connection.Request(address=cluster.address, environment=environment))
    try:

        @ray.remote
        def work() -> tuple[int, str]:
            from only_here import ANSWER  # type: ignore[import-not-found,unused-ignore]

            return ANSWER, os.environ["HOCKET_COLOUR"]

        assert ray.get(work.remote()) == (42, "red")
    finally:
        opened.close()


def refuse(request: connection.Request) -> str:
    """Return why a connection is refused."""
    with pytest.raises(exceptions.ConnectionFailedError) as caught:
        connection.connect(request)
    assert not ray.is_initialized()
    return str(caught.value)


@pytest.mark.timeout(20, func_only=True)  # ten seconds for each; Ray's own waits are of half a minute and more
def test_nobody_there() -> None:
    address = f"127.0.0.1:{find_free_port()}"
    assert refuse(connection.Request(address=address)).startswith(
        f"No Ray cluster can be joined at '{address}': Connection refused. Check that `ray start --head` runs there"
    )
    assert "--ray-client-server-port" in refuse(connection.Request(address=f"ray://{address}"))


@pytest.mark.timeout(30, func_only=True)
def test_another_part_of_ray(cluster: Cluster) -> None:
    """The ports of a node are many, and each of them speaks the protocol."""
    assert "the server there is not the head" in refuse(connection.Request(address=f"127.0.0.1:{CLIENT_PORT}"))
    raylets = [psutil.Process(pid) for pid in cluster.nodes[1].list_pids()]
    (raylet,) = (one for one in raylets if one.name() == "raylet")
    ports = [one.laddr.port for one in raylet.net_connections("tcp") if one.status == psutil.CONN_LISTEN]
    assert "the server there is not the head" in refuse(connection.Request(address=f"127.0.0.1:{ports[0]}"))
    assert f"'ray://{cluster.address}': the server there is not Ray Client" in refuse(
        connection.Request(address=f"ray://{cluster.address}")
    )


def join_elsewhere(address: str, home: Path, **variables: str) -> str:
    """Join in a process of its own, whose user has no token file, and return what it says."""
    environment = {name: text for name, text in os.environ.items() if name not in (TOKEN, access.MODE_VARIABLE)}
    script = (
        "import sys\n"
        "from hocket.engine.ray import connection\n"
        "opened = connection.connect(connection.Request(address=sys.argv[1]))\n"
        "print('joined')\n"
        "opened.close()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, address],
        env={**environment, "HOME": str(home), **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    said = done.stdout + done.stderr
    return "joined" if said.strip() == "joined" else said


@pytest.mark.parametrize("form", ["{}", f"ray://127.0.0.1:{CLIENT_PORT}"], ids=["node", "client"])
def test_token(cluster: Cluster, tmp_path: Path, form: str) -> None:
    address, token = form.format(cluster.address), os.environ[TOKEN]
    assert "but this process has none. On the head, `ray get-auth-token`" in join_elsewhere(address, tmp_path)
    unsent = join_elsewhere(address, tmp_path, RAY_AUTH_MODE="disabled", RAY_AUTH_TOKEN=token)
    assert "does not send its token, because RAY_AUTH_MODE=disabled" in unsent
    assert "RAY_AUTH_MODE=token is set, and this process has no token" in join_elsewhere(
        address, tmp_path, RAY_AUTH_MODE="token"
    )
    wrong = join_elsewhere(address, tmp_path, RAY_AUTH_TOKEN=token[::-1])
    assert (
        f"hocket.exceptions.ConnectionFailedError: The Ray cluster at {address!r} takes only drivers with its token"
        in wrong
    )
    assert "but this process has another one" in wrong
    file = tmp_path / ".ray" / "auth_token"
    file.parent.mkdir()
    file.write_text(token)
    assert join_elsewhere(address, tmp_path) == "joined"
    assert join_elsewhere(address, Path("/nonexistent"), RAY_AUTH_TOKEN_PATH=str(file)) == "joined"


def test_other_versions(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = {"Ray": "2.1.0", "Python": "3.8.1"}
    monkeypatch.setattr(access, "read_versions", lambda address: dict(theirs))
    message = refuse(connection.Request(address=cluster.address))
    assert (
        f"'{cluster.address}' has Ray 2.1.0 and Python 3.8.1, but this process has Ray {ray.__version__} and Python"
        in message
    )
    assert "pip install ray==2.1.0" in message


def test_what_the_cluster_says_of_its_versions(cluster: Cluster) -> None:
    versions = access.read_versions(addresses.parse_address(cluster.address))
    assert versions == {"Ray": ray.__version__, "Python": ".".join(map(str, sys.version_info[:3]))}


def test_machine_that_is_no_node(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "find_node_ids", lambda: {"00"})
    message = refuse(connection.Request(address=cluster.address))
    assert "a cluster is there, but none of its nodes runs on this machine. " in message
    assert "use 'ray://host:10001'" in message


SESSION = """
import os
import hocket, helper

@hocket.remote(resources={"far": 1})
def work(x):
    return helper.answer() + x, hocket.__file__

with hocket.init() as context:
    print(context["engine"], context["address"])
    print(*hocket.get(work.remote(1)), sep="\\n")
"""


def test_session(cluster: Cluster, run_driver: conftest.RunDriver) -> None:
    done = run_driver(SESSION, {"helper.py": "def answer(): return 42"}, HOCKET_ADDRESS=cluster.address)
    assert done.returncode == 0, done.stderr
    place, answer, package = done.stdout.splitlines()
    assert (place, answer) == (f"ray {cluster.address}", "43")
    assert package.startswith(cluster.nodes[1].folder)


def test_resources_of_a_running_cluster(cluster: Cluster) -> None:
    with pytest.raises(
        ValueError,
        match=r"num_cpus, resources can be set only for a Ray that hocket\.init starts, but the Ray at '127",
    ):
        connection.connect(connection.Request(address=cluster.address, num_cpus=1, resources={"a": 1}))


def test_large_folder(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "data.bin").open("wb") as file:
        file.truncate(101 * 2**20)
    monkeypatch.setattr(packages, "find_script_folder", lambda main: tmp_path)
    with pytest.raises(
        ValueError,
        match=r"at most 100 MiB are sent to a cluster by default\. The largest parts: data\.bin \(101 MiB\)",
    ):
        connection.connect(connection.Request(address=cluster.address))


def test_taken_over_without_the_package(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody has called ray.init for a cluster whose nodes do not have this package."""
    (tmp_path / "hocket").mkdir()
    (tmp_path / "hocket" / "__init__.py").write_text("raise ImportError('no such package')")
    environment = {"env_vars": {"PYTHONPATH": str(tmp_path)}}
    with access.settings({}, loopback=True):
        ray.init(address=cluster.address, runtime_env=environment, logging_level="ERROR")
    try:
        with pytest.raises(
            exceptions.ConnectionFailedError,
            match=r"cannot import hocket\. Replace ray\.init by hocket\.init\(address=.*py_modules",
        ):
            connection.connect(connection.Request())
        assert ray.is_initialized()
        monkeypatch.setattr(connection, "WORKER_SECONDS", 0.0)
        with pytest.raises(
            exceptions.ConnectionFailedError, match=r"has not run a task that needs no CPU within 0 seconds"
        ):
            connection.connect(connection.Request())
    finally:
        ray.shutdown()


def test_automatic_address(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "read_running_address", lambda: "")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(
        ConnectionError, match="address='auto' joins the Ray that runs on this machine, but none runs here"
    ):
        connection.connect(connection.Request(address="auto"))
    monkeypatch.setattr(access, "read_running_address", lambda: cluster.address)
    opened = connection.connect(connection.Request(address="auto"))
    opened.close()
    assert (opened.address, opened.is_owner) == (cluster.address, False)
    for address in ("", "auto"):
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{find_free_port()}")
        assert f"'{os.environ['RAY_ADDRESS']}': Connection refused" in refuse(connection.Request(address=address))


@strangers.needs_root
def test_an_address_that_another_user_has_left_is_not_followed(
    shared_place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(shared_place))
    file = Path(utils.get_ray_address_file(None))
    file.parent.mkdir(exist_ok=True)
    file.parent.chmod(0o777)  # as Ray makes it
    assert access.read_running_address() == ""
    file.write_text("127.0.0.1:6379\n")
    assert access.read_running_address() == "127.0.0.1:6379"
    file.unlink()
    strangers.run_as_other(lambda: file.write_text("127.0.0.1:6380"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(exceptions.ConnectionFailedError, match=r"another user \(uid 1002\).*address='127.0.0.1:6380'"):
        connection.connect(connection.Request(address="auto"))
    file.unlink()
    strangers.run_as_other(lambda: os.mkfifo(file))
    assert access.read_running_address() == "", "and nobody waits for it"


def test_nothing_of_the_cluster_listens_beyond_this_machine(cluster: Cluster) -> None:
    processes = [psutil.Process(pid) for node in cluster.nodes for pid in node.list_pids()]
    listening = conftest.list_listening(processes)
    assert {"gcs_server", "raylet"} <= listening.keys()
    assert {ip for ips in listening.values() for ip in ips} <= set(conftest.LOOPBACK)
