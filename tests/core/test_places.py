"""Where a session runs: what the arguments and the environment say, and what they may not say together."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import hocket
from hocket import exceptions


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOCKET_ADDRESS", "HOCKET_ENGINE", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)


NOWHERE = "127.0.0.1:1"
"""Nobody listens at port 1."""


@pytest.mark.parametrize("engine", ["local", "inprocess"], ids=["on this machine", "in this process"])
def test_address_and_another_engine(monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    with pytest.raises(
        ValueError, match=rf"address='{NOWHERE}' names a Ray cluster, but engine='{engine}' runs on this machine"
    ):
        hocket.init(NOWHERE, engine=engine)
    monkeypatch.setenv("HOCKET_ADDRESS", NOWHERE)
    with pytest.raises(
        ValueError,
        match=rf"the environment variable HOCKET_ADDRESS='{NOWHERE}' names a Ray cluster, .* address='local' means",
    ):
        hocket.init(engine=engine)
    with hocket.init(address="local", engine=engine) as context:
        assert (context["engine"], context["address"]) == (engine, "local")


@pytest.mark.parametrize("arguments", [{"address": NOWHERE}, {"address": NOWHERE, "engine": "ray"}, {}])
def test_address_implies_the_engine(monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any]) -> None:
    pytest.importorskip("ray", reason="the extra ray is not installed")
    monkeypatch.setenv("HOCKET_ENGINE", "inprocess")  # a default, which an address outweighs
    monkeypatch.setenv("HOCKET_ADDRESS", NOWHERE)
    with pytest.raises(
        exceptions.ConnectionFailedError, match=f"No Ray cluster can be joined at '{NOWHERE}': Connection refused"
    ):
        hocket.init(**arguments)
    assert not hocket.is_initialized()


def test_ray_address_counts_for_the_ray_engine_only(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="the extra ray is not installed")
    monkeypatch.setenv("RAY_ADDRESS", NOWHERE)
    with hocket.init(engine="inprocess") as context:
        assert context["engine"] == "inprocess"
    with pytest.raises(ConnectionError, match=f"'{NOWHERE}': Connection refused"):
        hocket.init(engine="ray")
    monkeypatch.setenv("HOCKET_ADDRESS", "127.0.0.1:2")
    with pytest.raises(ConnectionError, match=r"'127\.0\.0\.1:2': Connection refused"):
        hocket.init(engine="ray")


def test_addresses_that_are_none() -> None:
    with pytest.raises(TypeError, match="address must be text such as 'auto' or 'host:port', but received 6379"):
        hocket.init(6379)  # type: ignore[arg-type]


def test_address_without_a_port() -> None:
    pytest.importorskip("ray", reason="the extra ray is not installed")
    with pytest.raises(
        ValueError, match="must be 'auto', 'local', 'host:port' or 'ray://host:port', but received 'head'"
    ):
        hocket.init("head")


def test_engine_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_ENGINE", "fast")
    with pytest.raises(ValueError, match="received 'fast' in the environment variable HOCKET_ENGINE"):
        hocket.init()


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["ray", "grpc"])
def test_missing_extra(tmp_path: Path, missing: str) -> None:
    script = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        "import hocket\n"
        "try:\n"
        "    hocket.init(engine='ray')\n"
        "except ImportError as error:\n"
        "    print(type(error).__name__, error)\n"
        "with hocket.init(engine='inprocess'):\n"
        "    print(hocket.is_initialized())\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0].startswith(
        f"MissingExtraError The Ray engine needs ray[default], and {missing!r} cannot be imported. Run pip install "
        "'hocket[ray]'"
    )
    assert done.stdout.splitlines()[1] == "True"


@pytest.mark.slow
def test_ray_is_not_imported_unasked() -> None:
    script = "import sys, hocket; hocket.init(num_cpus=1); hocket.get(hocket.put(1)); sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
