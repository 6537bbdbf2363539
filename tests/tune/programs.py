"""Functions and classes that tests search over."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from pathlib import Path
from typing import Any

from hocket import tune
from hocket.tune.schedulers import FIFOScheduler
from hocket.tune.search import Searcher


def report_steps(config: dict[str, Any]) -> None:
    """Report ``score``, x times the step, ``steps`` times."""
    for step in range(1, config.get("steps", 3) + 1):
        tune.report({"score": config["x"] * step})


def save_steps(config: dict[str, Any]) -> None:
    """As `report_steps`, with a checkpoint each time, going on from the latest; marks each step in a folder."""
    checkpoint, first = tune.get_checkpoint(), 1
    if checkpoint is not None:
        first = json.loads(Path(checkpoint.path, "state.json").read_text())["step"] + 1
    for step in range(first, config.get("steps", 3) + 1):
        if "marks" in config:
            with Path(config["marks"], f"{config['x']:.6g}").open("a") as file:
                file.write(f"{step}\n")
        if config.get("dies_at") == (config["x"], step) and not Path(config["marks"], "died").exists():
            Path(config["marks"], "died").write_text("")
            os.kill(os.getpid(), signal.SIGKILL)
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "state.json").write_text(json.dumps({"step": step, "x": config["x"]}))
            tune.report({"score": config["x"] * step}, checkpoint=tune.Checkpoint.from_directory(folder))


class Counting(tune.Trainable):
    """Counts up by ``x``; its state is a dict."""

    def setup(self, config: dict[str, Any]) -> None:
        self.total = 0
        self.x = config["x"]

    def step(self) -> dict[str, Any]:
        self.total += self.x
        return {"score": self.total, "pid_seen": os.getpid()}

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        return {"total": self.total}

    def load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.total = checkpoint["total"]

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.setup(new_config)
        return True


class Holder:
    """An actor that only holds what it has."""

    def touch(self) -> None:
        """Be there."""


def refuse_elsewhere(pid: int) -> None:
    """Raise in any process but one."""
    if os.getpid() != pid:
        raise ValueError("not here")


class Silent(Searcher):
    """Never proposes."""

    def set_search_properties(self, *args: Any, **spec: Any) -> bool:
        return True

    def suggest(self, trial_id: str) -> None:
        return None

    def on_trial_complete(self, *args: Any, **more: Any) -> None:
        pass


class Idle(FIFOScheduler):
    """Never chooses."""

    def choose_trial_to_run(self, controls: Any) -> None:
        return None


class Bogus(FIFOScheduler):
    """Decides nonsense."""

    def on_trial_result(self, controls: Any, trial: Any, result: Any) -> Any:
        return "BOGUS"
