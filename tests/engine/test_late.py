"""A package whose own code has not run yet is not to be told from one whose code has."""

from __future__ import annotations

import subprocess
import sys
import types

import pytest

import hocket
from tests.conftest import RunScript

UNFINISHED = """
import importlib.util, sys, types
sys.modules["hocket"] = importlib.util.module_from_spec(importlib.util.find_spec("hocket"))
from hocket.engine.local import guardian, late
late.defer()
import hocket

def is_finished():
    return type(hocket) is types.ModuleType

"""
"""The state in which the guardian forks its first workers."""


def run(source: str) -> str:
    """Run a script in that state; return what it prints."""
    script = subprocess.run(
        [sys.executable, "-c", UNFINISHED + source], capture_output=True, text=True, timeout=30, check=False
    )
    assert script.returncode == 0, script.stderr
    return script.stdout


def test_the_guardian_needs_nothing_above_the_engine() -> None:
    source = """
print([name for name in sys.modules if name.startswith(("hocket.core", "hocket.util", "hocket.engine.inprocess"))])
print(is_finished())
"""
    assert run(source) == "[]\nFalse\n"


@pytest.mark.parametrize(
    "look",
    [
        "hocket.get",
        "hocket.__version__",
        "hocket.util.ActorPool and hocket.get",
        "dir(hocket)",
        "from hocket import remote",
        "from hocket import *",
        "late.finish(); late.finish()",
    ],
)
def test_a_look_for_a_name_brings_all(look: str) -> None:
    names = sorted(name for name, value in vars(hocket).items() if not isinstance(value, types.ModuleType))
    source = f"""
{look}
assert is_finished()
print(sorted(name for name, value in vars(hocket).items() if not isinstance(value, types.ModuleType)))
"""
    assert run(source) == f"{names}\n"


def test_dir_lists_the_public_names_at_once() -> None:
    assert run("print({'get', 'remote', 'util'} <= set(dir(hocket)))") == "True\n"


def test_a_module_of_the_package_is_imported_and_no_more() -> None:
    source = """
from hocket import version
print(version.__name__, "hocket.core" in sys.modules, is_finished())
"""
    assert run(source) == "hocket.version False False\n"


@pytest.mark.parametrize("module", ["hocket.core.placement", "hocket.core.actor", "hocket.util.queue", "hocket.train"])
def test_any_module_can_be_the_first(module: str) -> None:
    """Each looks for other modules in the package while it is half loaded itself."""
    source = f"""
import {module}
print(hocket.get.__module__, sys.modules[{module!r}].__name__)
"""
    assert run(source) == f"hocket.core.api {module}\n"


def test_an_unknown_name_is_unknown() -> None:
    source = """
for _ in range(2):
    try:
        hocket.nonsense
    except AttributeError as error:
        print(error)
"""
    assert run(source) == "module 'hocket' has no attribute 'nonsense'\n" * 2


def test_it_travels_by_name() -> None:
    source = """
import cloudpickle
copy = cloudpickle.loads(cloudpickle.dumps(lambda: hocket))
print(copy() is hocket, is_finished())
"""
    assert run(source) == "True False\n"


def test_threads_may_look_at_the_same_time() -> None:
    source = """
import threading
gate = threading.Barrier(8)
found = []

def look(name):
    gate.wait()
    found.append(getattr(hocket, name))

names = ("get", "put", "util", "dag", "remote", "wait", "RuntimeContext", "__version__")
threads = [threading.Thread(target=look, args=(name,)) for name in names]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(found), is_finished())
"""
    assert run(source) == "8 True\n"


def test_the_first_task_has_all_names(start_script: RunScript) -> None:
    driver = start_script("""
import hocket

def work():
    return hocket.get(hocket.put(7))

print(hocket.get(hocket.remote(work).remote()))
""")
    assert driver.communicate(timeout=30) == ("7\n", "")


def test_a_fork_of_the_first_worker_has_no_session(start_script: RunScript) -> None:
    driver = start_script("""
import os
import hocket

def work():
    pid = os.fork()
    if pid == 0:
        os._exit(3 if hocket.is_initialized() else 4)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

print(hocket.get(hocket.remote(work).remote()))
""")
    assert driver.communicate(timeout=30) == ("4\n", "")
