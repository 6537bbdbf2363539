"""Draw the pictures of docs/images that show the dashboard: a program with all there is to see, and a real browser.
`notebook` is a JupyterLab whose second cell trains.

    python tools/screenshots.py docs/images [PAGE...]

Needs the packages of the group `browser`, and a Chromium: CHROMIUM=/path/to/it, or `chromium` on the path.
"""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from playwright import sync_api

PROGRAM = """
import os
import sys
import threading
import time
import warnings

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
warnings.simplefilter("ignore")

import numpy as np
import torch.distributed as dist
import torch

import hocket
from hocket import data, mesh, ps, train, tune
from hocket.train.torch import TorchTrainer

folder = sys.argv[1]
hocket.init(num_cpus=12)


@hocket.remote
def clean(rows):
    time.sleep(0.02)
    return rows * 2


@hocket.remote(max_retries=0)
def parse(text):
    return int(text)


@hocket.remote
class Counter:
    def __init__(self):
        self.count = 0

    def add(self):
        time.sleep(0.05)
        self.count += 1


def work():
    counters = [Counter.options(name=f"counter-{number}").remote() for number in range(2)]
    kept = hocket.put(np.ones(1_000_000))
    while True:
        hocket.get([clean.remote(1) for _ in range(20)] + [one.add.remote() for one in counters])
        hocket.wait([parse.remote("a number")])


def serve():
    strategy = ps.ParameterServerStrategy({"worker": 2, "server": 2}, optimizer=ps.Adagrad(lr=0.1))
    coordinator = ps.Coordinator(strategy)
    with strategy.scope():
        weights = ps.Variable(np.zeros((64, 8)), name="weights", partitioner=ps.FixedShards(2))
        words = ps.Embedding(None, 16, capacity=10_000, name="words")

    def step():
        strategy.pull([weights])
        rows = words.lookup(np.random.randint(0, 1000, 32))
        time.sleep(0.02 + 0.03 * np.random.rand())
        strategy.push([(np.ones((64, 8), np.float32), weights)])

    while True:
        for _ in range(50):
            coordinator.schedule(step)
        coordinator.join()


def read():
    def slow(batch):
        time.sleep(0.05)
        return {"id": batch["id"], "square": batch["id"] ** 2}

    while True:
        rows = data.range(200_000).repartition(100).map_batches(slow).random_shuffle(seed=1)
        for batch in rows.iter_batches(batch_size=1000):
            time.sleep(0.02)


def spread():
    devices = mesh.create_mesh({"data": 2, "model": 2}, framework="jax")
    rules = mesh.LayoutMap(devices, {".*/kernel": [mesh.UNSHARDED, "model"], "embedding": ["data", mesh.UNSHARDED]})
    tree = mesh.distribute(
        {"embedding": np.ones((1024, 64), np.float32),
         "first": {"kernel": np.ones((64, 256), np.float32), "bias": np.ones(256, np.float32)},
         "last": {"kernel": np.ones((256, 8), np.float32), "bias": np.ones(8, np.float32)}}, rules)
    for _ in range(3):
        mesh.relayout(tree["embedding"], [mesh.UNSHARDED, "data"])
        mesh.relayout(tree["first"]["kernel"], ["model", mesh.UNSHARDED])


def trial(config):
    for step in range(12):
        time.sleep(0.05)
        tune.report({"loss": (config["lr"] - 0.03) ** 2 * 100 + 0.2 * (config["optimizer"] == "sgd") + 1 / (step + 1)})


def search():
    tune.Tuner(
        trial,
        param_space={
            "lr": tune.loguniform(1e-3, 1e-1),
            "optimizer": tune.choice(["adam", "sgd"]),
            "width": tune.choice([32, 64, 128]),
        },
        tune_config=tune.TuneConfig(
            num_samples=40, metric="loss", mode="min", scheduler=tune.schedulers.ASHAScheduler()
        ),
        run_config=tune.RunConfig(name="search", storage_path=folder, verbose=0),
    ).fit()


def train_step(rank):
    time.sleep(0.05 if rank == 1 else 0.005)


def train_long():
    rank = train.get_context().get_world_rank()
    loader = torch.utils.data.DataLoader(torch.randn(100_000, 8), batch_size=8)
    for step, rows in enumerate(train.torch.prepare_data_loader(loader)):
        train_step(rank)
        dist.all_reduce(torch.ones(1))
        train.report({"loss": 1 / (1 + step / 20) + 0.02 * float(torch.rand(())), "accuracy": 1 - 1 / (1 + step / 15)})


spread()
for function in (work, serve, read, search):
    threading.Thread(target=function, daemon=True).start()
print("open", flush=True)
TorchTrainer(
    train_long,
    scaling_config=train.ScalingConfig(num_workers=2),
    run_config=train.RunConfig(name="digits", storage_path=folder),
).fit()
"""

CELLS = [
    """
from hocket.observe.notebook import LiveCurves

LiveCurves()
""",
    """
import torch
from sklearn.datasets import load_digits

from hocket import train
from hocket.train.torch import TorchTrainer, prepare_data_loader, prepare_model


def train_digits():
    images, labels = load_digits(return_X_y=True)
    rows = torch.utils.data.TensorDataset(torch.tensor(images / 16).float(), torch.tensor(labels))
    loader = prepare_data_loader(torch.utils.data.DataLoader(rows, batch_size=32, shuffle=True))
    model = prepare_model(torch.nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(15):
        hits = 0
        for inputs, targets in loader:
            outputs = model(inputs)
            loss = torch.nn.functional.cross_entropy(outputs, targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            hits += int((outputs.argmax(1) == targets).sum())
        train.report({"loss": loss.item(), "accuracy": hits / len(rows) * 2})


TorchTrainer(train_digits, scaling_config=train.ScalingConfig(num_workers=2)).fit()
""",
]
"""Of the notebook: the curves, and what they show."""

PAGES = ("now", "training", "search", "servers", "data", "mesh", "workers", "actors", "memory", "errors")

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium")

SECONDS = 15
"""How long the program runs before it is looked at."""


@contextlib.contextmanager
def run(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """Run a program, and end it with all that it has started."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def read_line(process: subprocess.Popen[str]) -> str:
    """Return a program's next line."""
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if not line:
        raise SystemExit("A program has ended before it said anything.")
    return line


def draw(address: str, folder: Path, pages: list[str]) -> None:
    """Take the pictures."""
    with sync_api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for scheme in ("light", "dark"):
            opened: Any = browser.new_context(viewport={"width": 1100, "height": 800}, color_scheme=scheme)
            page = opened.new_page()
            page.goto(address)
            page.wait_for_selector("#counts")
            for name in pages:
                page.click(f"nav button:text-is('{name.capitalize()}')")
                page.wait_for_timeout(4000)
                file = "dashboard" if name == "now" else name
                page.screenshot(path=folder / f"{file}-{scheme}.png")
            opened.close()
        browser.close()


def draw_notebook(folder: Path, home: Path) -> None:
    """Run the notebook in a JupyterLab, and take its picture."""
    cells: list[dict[str, Any]] = [
        {
            "cell_type": "code",
            "source": text.strip(),
            "metadata": {},
            "outputs": [],
            "execution_count": None,
            "id": str(at),
        }
        for at, text in enumerate(CELLS)
    ]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    written = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    (home / "digits.ipynb").write_text(json.dumps(written))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = {"token": "", "port": port, "root_dir": str(home), "open_browser": False, "allow_root": True}
    command = [sys.executable, "-m", "jupyterlab", *(f"--ServerApp.{name}={value}" for name, value in settings.items())]
    os.environ.update(HOME=str(home), JUPYTER_CONFIG_DIR=str(home / "config"))
    with run([*command, "--log-level=ERROR"]), sync_api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1240, "height": 1100})
        address = f"http://127.0.0.1:{port}/lab/tree/digits.ipynb"
        while True:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(address, timeout=5).close()
                break
            page.wait_for_timeout(200)
        page.goto(address)
        page.wait_for_selector(".jp-Notebook-ExecutionIndicator[data-status=idle]", timeout=120_000)
        while page.locator(".hocket-curves p").count() == 0:  # a kernel that says that it is idle may not listen yet
            page.click(".jp-CodeCell >> nth=0 >> .cm-content")
            page.keyboard.press("Shift+Enter")
            with contextlib.suppress(sync_api.TimeoutError):
                page.wait_for_selector(".hocket-curves p", timeout=20_000)
        page.keyboard.press("Shift+Enter")
        page.wait_for_function(
            "document.querySelector('.hocket-curves').innerText.includes('finished')", timeout=120_000
        )
        box: Any = page.locator(".jp-Notebook").first.bounding_box()
        page.screenshot(
            path=folder / "notebook.png", clip={**box, "height": 855}
        )  # the cells, without the result's table
        browser.close()


def main() -> None:
    """Run the program and the dashboard, and take the pictures."""
    folder, *pages = sys.argv[1:]
    if not pages or "notebook" in pages:
        with tempfile.TemporaryDirectory() as home:
            draw_notebook(Path(folder).resolve(), Path(home))
        pages = [page for page in pages if page != "notebook"]
        if len(sys.argv) > 2 and not pages:
            return
    with tempfile.TemporaryDirectory() as kept, run([sys.executable, "-c", PROGRAM, kept]) as program:
        read_line(program)
        with run([sys.executable, "-m", "hocket", "dashboard", str(program.pid)]) as dashboard:
            address = read_line(dashboard).split()[-1]
            with contextlib.suppress(subprocess.TimeoutExpired):
                program.wait(SECONDS)
            draw(address, Path(folder), pages or list(PAGES))


if __name__ == "__main__":
    main()
