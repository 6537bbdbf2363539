"""Notebooks in a real kernel: the examples run, what is returned is shown, and nothing is left."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient

EXAMPLES = Path(__file__).parents[2] / "examples" / "notebooks"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(180),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning"),  # the clients' own
]


@contextlib.contextmanager
def kernel(folder: Path) -> Iterator[tuple[KernelManager, Any]]:
    """A kernel that works in a folder, and a client that is connected with it."""
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(cwd=str(folder))
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)
        yield manager, client
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def run_cell(client: Any, source: str) -> tuple[str, str]:
    """Run a cell; return what it printed or returned, and its error."""
    shown: list[str] = []

    def note(message: dict[str, Any]) -> None:
        content = message["content"]
        if message["msg_type"] == "stream":
            shown.append(content["text"])
        elif message["msg_type"] in ("execute_result", "display_data"):
            shown.append(content["data"].get("text/html", content["data"]["text/plain"]))

    reply = client.execute_interactive(source, output_hook=note, timeout=60)["content"]
    return "".join(shown), "" if reply["status"] == "ok" else f"{reply['ename']}: {reply['evalue']}"


def list_family(manager: KernelManager) -> list[psutil.Process]:
    assert manager.provisioner is not None
    return psutil.Process(manager.provisioner.pid).children(recursive=True)  # type: ignore[attr-defined]


def wait_until_gone(family: list[psutil.Process]) -> None:
    _, living = psutil.wait_procs(family, timeout=10)
    assert not [process for process in living if process.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize("name", ["tasks_and_actors", "training", "data"])
def test_example(name, tmp_path):
    notebook = nbformat.read(EXAMPLES / f"{name}.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "examples are kept without outputs"
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = "".join(str(cell.get("outputs", "")) for cell in notebook.cells)
    expected = {
        "tasks_and_actors": ["Hocket session", "[0, 1, 4, 9, 16, 25, 36, 49]", "'14'", "division by zero"],
        "training": ["<b>Result</b>", "reports"],
        "data": ["<b>Dataset</b>", "not known before they are read", "14286", "14285"],
    }
    assert [text for text in expected[name] if text not in shown] == []


def test_functions_of_cells_and_an_error_that_shows_them(tmp_path):
    with kernel(tmp_path) as (manager, client):
        assert run_cell(client, "import hocket; context = hocket.init(num_cpus=2)") == ("", "")
        assert run_cell(client, "def double(x):\n    return 2 * x\n\nf = hocket.remote(double)") == ("", "")
        assert run_cell(client, "print(hocket.get(f.remote(4)))") == ("8\n", "")
        run_cell(client, "def double(x):\n    return 3 * x\n\nf = hocket.remote(double)")
        assert run_cell(client, "hocket.get(f.remote(4))") == ("12", "")
        _, error = run_cell(client, "hocket.get(f.remote(None))")
        assert "unsupported operand" in error
        assert "return 3 * x" in error
        family = list_family(manager)
        assert family
        assert run_cell(client, "hocket.shutdown()") == ("", "")
        wait_until_gone(family)


def test_an_interrupt_ends_the_cell_and_not_the_session(tmp_path):
    with kernel(tmp_path) as (manager, client):
        run_cell(client, "import hocket, pathlib, time; context = hocket.init(num_cpus=2)")
        run_cell(
            client,
            "@hocket.remote\ndef sleep(seconds):\n    pathlib.Path('begun').touch()\n    time.sleep(seconds)\n    return 7",
        )
        client.execute("hocket.get(sleep.remote(1000))", stop_on_error=False)  # or what comes next is not run
        deadline = time.monotonic() + 30
        while not (tmp_path / "begun").exists():
            assert time.monotonic() < deadline, "the task did not begin"
            time.sleep(0.02)
        manager.interrupt_kernel()
        while (message := client.get_iopub_msg(timeout=30))["msg_type"] != "error":
            pass
        assert message["content"]["ename"] == "KeyboardInterrupt"
        assert run_cell(client, "hocket.get(sleep.remote(0))") == ("7", "")


def test_a_restart_leaves_nothing(tmp_path):
    with kernel(tmp_path) as (manager, client):
        run_cell(client, "import hocket; context = hocket.init(num_cpus=2)")
        run_cell(client, "class A:\n    def m(self):\n        return 1\n\na = hocket.remote(A).remote()")
        assert run_cell(client, "hocket.get(a.m.remote())") == ("1", "")
        family = list_family(manager)
        assert len(family) >= 2
        manager.restart_kernel(now=True)
        wait_until_gone(family)
        client.wait_for_ready(timeout=60)
        assert run_cell(client, "import hocket; print(hocket.is_initialized())") == ("False\n", "")


def test_progress_of_a_training_is_live(tmp_path):
    with kernel(tmp_path) as (_, client):
        shown, error = run_cell(
            client,
            "from hocket import train\n"
            "trainer = train.DataParallelTrainer(\n"
            "    lambda: [train.report({'step': step, 'loss': 1 / (step + 1)}) for step in range(20)],\n"
            "    scaling_config=train.ScalingConfig(num_workers=2),\n"
            f"    run_config=train.RunConfig(name='live', storage_path={str(tmp_path)!r}),\n"
            ")\n"
            "result = trainer.fit()",
        )
        assert error == ""
        assert re.search(r"live.*loss", shown, re.DOTALL)
