"""Fixtures for all tests."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import hypothesis
import pytest

import hocket
from hocket.core import engines
from hocket.core import session as core_session
from hocket.engine import contract
from hocket.testing import EngineContract, Leftovers
from hocket.util import state
from tests import lanes, scheduling

ENGINE = os.environ.get("HOCKET_ENGINE") or "local"
"""On which engine the tests run that do not name one."""

RunScript = Callable[[str], "subprocess.Popen[str]"]


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts jobs in the background so, and programs that we start to interrupt them would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


# The same examples each time: a new one says nothing about the change that was made. `make test-long` draws others.
hypothesis.settings.register_profile("repeatable", derandomize=True)
hypothesis.settings.load_profile("default" if os.environ.get("HOCKET_RANDOM_TESTS") else "repeatable")

STARTS_RAY = (
    "tests/data/test_lost_nodes.py",
    "tests/engine/ray/",
    "tests/train/test_cluster.py",
    "tests/ps/test_nodes.py",
)
"""Tests that start a Ray in this process.

It leaves threads there, which open and close sockets as they like, so these tests run last.
"""

PATIENCE = 4
"""How many times longer a test may take on Ray, where a worker takes a second to start. A guess."""

SESSION_CPUS = 2


IN_HALVES = "tests/engine/ray/test_contract.py"
"""It takes longer than all other tests of Ray, and comes last as they do: one process would wait for the other."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give the processes of pytest-xdist a file at a time: its tests share the fixtures of their module."""
    return scheduling.build_scheduler(config, log, in_halves=IN_HALVES)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import a module whose tests are all thorough, if these are left out: some of them import frameworks."""
    if "not thorough" not in (config.option.markexpr or ""):
        return None
    path = collection_path.relative_to(config.rootpath).as_posix() + "/" * collection_path.is_dir()
    return True if any(lanes.list_reasons(path)) else None


def pytest_collection_finish() -> None:
    """Have nobody look for garbage in all that was imported, which takes a third of a second each time."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)  # before -m leaves tests out by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what cannot pass on the engine, with the sentence that says why, and put what starts a Ray last."""
    _put_engines_one_after_the_other(items)
    items.sort(key=lambda item: item.nodeid.startswith(STARTS_RAY))
    limits = engines.get_limits(ENGINE)
    for item in items:
        for why in lanes.list_reasons(item.nodeid):
            item.add_marker(pytest.mark.thorough(why))
        for why in lanes.list_reasons(item.nodeid, lanes.UNHURRIED):
            item.add_marker(pytest.mark.unhurried(why))
        reason = _find_reason(item, limits)
        if reason is not None:
            item.add_marker(pytest.mark.skip(reason=reason))
        if ENGINE == "ray":
            _be_patient(item)


def _put_engines_one_after_the_other(items: list[pytest.Item]) -> None:
    """Put a module's tests on the in-process engine last: each of them ends the common session."""
    modules: dict[str, int] = {}
    for item in items:
        modules.setdefault(item.nodeid.partition("::")[0], len(modules))

    def get_place(item: pytest.Item) -> tuple[int, bool]:
        given = getattr(item, "callspec", None)
        is_last = given is not None and given.params.get("any_session") == "inprocess"
        return modules[item.nodeid.partition("::")[0]], is_last

    items.sort(key=get_place)


def _find_reason(item: pytest.Item, limits: Mapping[str, str]) -> str | None:
    for marker in item.iter_markers("about_local"):
        if len(marker.args) != 1 or marker.kwargs:
            raise pytest.UsageError(f"{item.nodeid}: write about_local('what of the local engine it tests')")
        if ENGINE != "local":
            return f"It tests what only the local engine has: {marker.args[0]}."
    if issubclass(getattr(item, "cls", None) or object, EngineContract):  # it asks the engine that it is for
        return None
    abilities = [ability for marker in item.iter_markers("needs") for ability in marker.args]
    return next((limits[ability] for ability in abilities if ability in limits), None)


def _be_patient(item: pytest.Item) -> None:
    given = item.get_closest_marker("timeout")
    seconds = given.args[0] if given is not None else float(item.config.getini("timeout"))
    item.add_marker(pytest.mark.timeout(PATIENCE * seconds), append=False)
    # Ray leaves sockets, log files and processes that it has killed to the garbage collector.
    item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
    # The thread that prints its logs may ask a Ray that has ended.
    item.add_marker(pytest.mark.filterwarnings("ignore:Exception in thread ray_print_logs"))


class SharedRay:
    """The one Ray of all tests that do not start one themselves: to start one takes seconds.

    Sessions take it over and leave it. It ends before anything else in this process starts or joins a Ray.
    """

    def __init__(self) -> None:
        self._opened: Any = None
        self._is_lent = False
        self._restore = contextlib.ExitStack()

    @contextlib.contextmanager
    def lend(self) -> Iterator[None]:
        """Have sessions that are opened inside take it over."""
        connection: Any = importlib.import_module("hocket.engine.ray.connection")
        if self._opened is None:
            request = connection.Request(
                address="local", num_cpus=SESSION_CPUS, options={"include_dashboard": True}
            )  # the state API is a part of the dashboard
            self._opened = connection.connect(request)
            connect = connection.connect

            def close_and_connect(request: Any) -> Any:
                if not self._is_lent:
                    self.close()
                return connect(request)

            self._restore.callback(setattr, connection, "connect", connect)
            connection.connect = close_and_connect
        self._is_lent = True
        try:
            yield
        finally:
            self._is_lent = False

    def close(self) -> None:
        """End it, if there is one."""
        self._restore.close()
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()
            with warnings.catch_warnings():  # what it has left open is closed before the next test comes across it
                warnings.simplefilter("ignore", ResourceWarning)
                gc.collect()


_SHARED_RAY = SharedRay()


def do_nothing() -> None:
    pass


class CommonSession:
    """A session that tests use one after the other, of all their modules: its workers have imported what they need."""

    def __init__(self) -> None:
        self._opened: hocket.SessionContext | None = None
        self._engine: contract.Engine | None = None
        self._kind = ""
        self._before = Leftovers.look()

    def open(self, kind: str) -> hocket.SessionContext:
        """Open it, if it is not open for this kind of tests."""
        if self._opened is not None and self._kind != kind:
            self.close()
        if self._opened is None:
            self._before, self._kind = Leftovers.look(), kind
            self._opened = hocket.init(num_cpus=SESSION_CPUS, engine="local")
            self._engine = contract.current_engine
        return self._opened

    def is_open(self) -> bool:
        """Tell whether it is the session of this process, and works: a test may have shut it down and opened another
        one, or ended its processes."""
        if contract.current_engine is not self._engine:
            return False
        try:
            hocket.get(hocket.remote(do_nothing).options(num_cpus=0).remote())
        except hocket.exceptions.HocketError:
            return False
        return True

    def close(self) -> None:
        """Close it, and check that it leaves nothing behind."""
        opened, self._opened = self._opened, None
        if opened is not None:
            with opened:
                pass
            assert self._before.list_new() == []


_COMMON_SESSION = CommonSession()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """End the shared Ray before a test, or a fixture of its module, starts one: it would have the shared one's
    settings. And end the common session before a test opens another one."""
    names = getattr(item, "fixturenames", ())
    if item.nodeid.startswith(STARTS_RAY) and "shared_ray" not in names:
        _SHARED_RAY.close()
    if "has_common_session" not in names:
        _COMMON_SESSION.close()


@pytest.fixture(scope="session", autouse=True)
def the_common_session_ends() -> Iterator[None]:
    """With the last test."""
    yield
    _COMMON_SESSION.close()


@pytest.fixture(scope="session")
def shared_ray() -> Iterator[SharedRay]:
    yield _SHARED_RAY
    _SHARED_RAY.close()


@contextlib.contextmanager
def open_session(engine: str, shared_ray: SharedRay, num_cpus: int = SESSION_CPUS) -> Iterator[hocket.SessionContext]:
    """Open a session, after the common one has ended, and check that it leaves nothing behind.

    On a shared Ray that is not so: Ray keeps processes, threads and descriptors.
    """
    _COMMON_SESSION.close()
    if engine == "ray":
        with shared_ray.lend(), hocket.init(num_cpus=SESSION_CPUS, engine=engine) as context:
            yield context
        return
    before = Leftovers.look()
    with hocket.init(num_cpus=num_cpus, engine=engine) as context:
        yield context
    assert before.list_new() == []


@pytest.fixture(autouse=True)
def interrupts_are_as_before() -> Iterator[None]:
    """Ctrl-C means after each test what it meant before: another test's would not arrive."""
    before = signal.getsignal(signal.SIGINT)
    yield
    assert signal.getsignal(signal.SIGINT) == before


@contextlib.contextmanager
def use_common_session(kind: str) -> Iterator[hocket.SessionContext]:
    """Use a session that tests before this one have used, and leave nothing behind in it."""
    context = _COMMON_SESSION.open(kind)
    try:
        yield context
        if _COMMON_SESSION.is_open():
            wait_until_nothing_runs()
        else:
            _COMMON_SESSION.close()
    except BaseException:
        _COMMON_SESSION.close()
        raise


@pytest.fixture(scope="module")
def has_common_session() -> bool:
    """Whether tests on two CPUs of the local engine use one session after the other: to start one takes longer than
    most tests, and its workers have imported what the tests before needed. A folder, or a module, overrides it."""
    return False


@pytest.fixture
def common_session_kind() -> str:
    """The kind of a test, if it needs another common session than others do: one process has one backend of Keras."""
    return ""


@pytest.fixture
def fresh_session(shared_ray: SharedRay) -> Iterator[hocket.SessionContext]:
    """A session on two CPUs, of this test alone, that leaves nothing behind."""
    with open_session(ENGINE, shared_ray) as context:
        yield context


@pytest.fixture
def session(
    request: pytest.FixtureRequest, shared_ray: SharedRay, has_common_session: bool, common_session_kind: str
) -> Iterator[hocket.SessionContext]:
    """A session on two CPUs in which nothing is left behind. Where workers write is settled when it is opened, so a
    test that reads these lines has its own."""
    is_common = has_common_session and ENGINE == "local" and "capfd" not in request.fixturenames
    with use_common_session(common_session_kind) if is_common else open_session(ENGINE, shared_ray) as context:
        yield context


@pytest.fixture(scope="module")
def session_cpus() -> int:
    """How many CPUs the module's shared session has, and so how many workers stay when they have nothing to do. Tests
    of more ranks than these would start processes, and import a framework, each time: a folder overrides it."""
    return SESSION_CPUS


@pytest.fixture(scope="module")
def worker_imports(request: pytest.FixtureRequest) -> list[str]:
    """What all workers of the module's shared session need, and one process imports for them: PyTorch, in a module
    that has it. A folder, or a module, overrides it."""
    return ["torch"] if hasattr(request.module, "torch") else []


@pytest.fixture(scope="module")
def shared_session(
    shared_ray: SharedRay, session_cpus: int, worker_imports: list[str]
) -> Iterator[hocket.SessionContext]:
    """One session for all tests of a module, on two CPUs if nothing else is said, that leaves nothing behind: to start
    one takes longer than most tests, and its workers have imported already what the tests before needed.
    """
    with open_session(ENGINE, shared_ray, session_cpus) as context:
        if worker_imports:
            core_session.get_engine().tasks.expect_work(worker_imports)
        yield context


@pytest.fixture(params=["local", "inprocess"] if ENGINE == "local" else [ENGINE])
def any_session(
    request: pytest.FixtureRequest, shared_ray: SharedRay, has_common_session: bool
) -> Iterator[hocket.SessionContext]:
    """A session on two CPUs, on each engine, in which nothing is left behind."""
    is_common = has_common_session and request.param == "local" and "capfd" not in request.fixturenames
    with use_common_session("") if is_common else open_session(request.param, shared_ray) as context:
        yield context


def list_new_shared_memory(before: Leftovers) -> list[str]:
    """Return the files in /dev/shm that were not there before; waits two seconds for them to go: tests beside this
    one have some for a moment."""
    deadline = time.monotonic() + 2
    while (new := sorted(Leftovers.look().shared_memory - before.shared_memory)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return new


def wait_until_cpus_are_free() -> None:
    """Make sure that nothing is held any more.

    Ray hears of it a moment later: there it is waited for, and fails after half a minute.
    """
    if ENGINE != "ray":
        assert hocket.available_resources() == hocket.cluster_resources()
        return
    deadline = time.monotonic() + 30
    while hocket.available_resources().get("CPU") != hocket.cluster_resources()["CPU"]:
        assert time.monotonic() < deadline, f"free are {hocket.available_resources()}"
        hocket.wait([hocket.put(None)])


def wait_until_nothing_runs() -> None:
    """Make sure that no task runs any more, and no actor is alive: for ten seconds they may end."""
    deadline = time.monotonic() + 10
    while (left := _describe_what_runs()) is not None:
        assert time.monotonic() < deadline, left
        time.sleep(0.01)


def _describe_what_runs() -> str | None:
    if (free := hocket.available_resources()) != hocket.cluster_resources():
        return f"free are {free}"
    actors = state.list_actors(filters=[("state", "!=", "DEAD")])
    return f"there are {actors}" if actors else None


@pytest.fixture
def start_script() -> Iterator[RunScript]:
    """Start a Python script as a driver of its own; stdout is a pipe."""
    started: list[subprocess.Popen[str]] = []

    def start(source: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", source],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
