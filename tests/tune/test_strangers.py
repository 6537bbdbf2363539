"""Searches in folders where others may write: what they have pickled there runs only if they are trusted."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import strangers
from tests.stores.test_trust import STRANGER, Evil, needs_root

from hocket import exceptions, tune

pytestmark = pytest.mark.usefixtures("session")


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder where everybody may make files, such as ``/tmp``."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o1777)
        yield Path(folder)


def _plant(folder: Path, mark: Path) -> None:
    """Have another user make the folder of a search, with everything in it that is unpickled anywhere."""

    def write() -> None:
        folder.mkdir()
        folder.chmod(0o777)
        evil = pickle.dumps(Evil(str(mark)))
        sealed = {"!pickle": base64.b85encode(evil).decode()}
        session = {"event": "session", "version": 1, "time": 0, "seed": 1, "prefix": "a", "name": "f", "metric": None}
        trial = {"event": "trial", "id": "a_0", "number": 0, "config": {"x": sealed}, "tag": "0", "folder": "f_0"}
        lines = [session | {"mode": None, "more": sealed}, trial]
        (folder / "search.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (folder / "tuner.pickle").write_bytes(evil)
        (folder / "state.pickle").write_bytes(evil)
        for path in folder.iterdir():
            path.chmod(0o666)

    strangers.run_as_other(write, STRANGER)


def _objective(config: dict[str, Any]) -> dict[str, Any]:
    return {"loss": 1.0}


class _Steps(tune.Trainable):
    def setup(self, config: dict[str, Any]) -> None:
        self.count = 0

    def step(self) -> dict[str, Any]:
        self.count += 1
        return {"loss": float(self.count), "done": self.count >= 3}

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        return {"count": self.count}

    def load_checkpoint(self, checkpoint: Any) -> None:
        self.count = checkpoint["count"]


def _config(name: str, top: Path) -> tune.RunConfig:
    return tune.RunConfig(name=name, storage_path=str(top), verbose=0)


def _begin_optuna(path: Path) -> None:
    pytest.importorskip("optuna")
    from hocket.tune.search.optuna import OptunaSearch

    OptunaSearch().restore(str(path))


LOOKS: dict[str, Callable[[Path], object]] = {
    "fit": lambda path: tune.Tuner(_objective, run_config=_config(path.name, path.parent)).fit(),
    "can_restore": tune.Tuner.can_restore,
    "run": lambda path: tune.run(_objective, name=path.name, storage_path=str(path.parent), verbose=0),
}
"""Calls that were not told to go on with the search."""

RESTORES: dict[str, Callable[..., object]] = {
    "restore": lambda path, **how: tune.Tuner.restore(path, _objective, **how),
    "restore with all given": lambda path, **how: tune.Tuner.restore(
        path,
        _objective,
        param_space={"x": 1},
        tune_config=tune.TuneConfig(),
        run_config=tune.RunConfig(verbose=0),
        **how,
    ),
    "run(resume=True)": lambda path, **how: tune.run(
        _objective, name=path.name, storage_path=str(path.parent), resume=True, verbose=0, **how
    ),
    "run(resume='AUTO')": lambda path, **how: tune.run(
        _objective, name=path.name, storage_path=str(path.parent), resume="AUTO", verbose=0, **how
    ),
    "ResultGrid": lambda path, **how: len(tune.ResultGrid(path, **how)),
    "ExperimentAnalysis": lambda path, **how: len(tune.ExperimentAnalysis(path, **how).trials),
    "Trainable.restore": lambda path, **how: _Steps({}).restore(str(path), **how),
    "OptunaSearch.restore": lambda path: _begin_optuna(path / "state.pickle"),
}


@needs_root
@pytest.mark.parametrize("name", [*LOOKS])
def test_who_does_not_go_on_with_a_search_runs_nothing_of_it(name: str, shared: Path, tmp_path: Path) -> None:
    mark = shared / "mark"
    _plant(shared / "exp", mark)
    try:
        LOOKS[name](shared / "exp")
    except exceptions.UntrustedFolderError as error:
        assert "belongs to user" in str(error)  # noqa: PT017 (it may also look, and begin nothing)
    assert not mark.exists()


@needs_root
@pytest.mark.parametrize("name", [*RESTORES])
@pytest.mark.parametrize("how", ["his folder", "my folder, his file", "my folder, open to all"])
def test_what_a_stranger_may_have_written_is_refused(name: str, how: str, shared: Path) -> None:
    mark = shared / "mark"
    _plant(shared / "exp", mark)
    if how != "his folder":
        for path in (shared / "exp", *(shared / "exp").iterdir()):
            if how != "my folder, his file" or path.is_dir():
                os.chown(path, 0, 0)
            path.chmod(0o755 if path.is_dir() and how == "my folder, his file" else 0o777 if path.is_dir() else 0o644)
    with pytest.raises(exceptions.UntrustedFolderError, match=r"would unpickle .*exp.*can run code.*trust=True"):
        RESTORES[name](shared / "exp")
    assert not mark.exists()


@needs_root
@pytest.mark.parametrize("name", [one for one in RESTORES if "Optuna" not in one])
def test_trust_opens_it(name: str, shared: Path) -> None:
    mark = shared / "mark"
    _plant(shared / "exp", mark)
    with contextlib.suppress(exceptions.SerializationError, tune.TuneError, TypeError):  # it is no state of a search
        RESTORES[name](shared / "exp", trust=True)
    assert mark.exists() or name == "restore with all given"


@pytest.mark.parametrize("given", [None, 1, "yes"])
def test_trust_is_yes_or_no(given: Any, tmp_path: Path) -> None:
    with pytest.raises((TypeError, ValueError), match="trust must be"):
        tune.Tuner.restore(tmp_path, _objective, trust=given)
    with pytest.raises((TypeError, ValueError), match="trust must be"):
        tune.ResultGrid(tmp_path, trust=given)


@pytest.mark.parametrize("kind", ["function", "class"])
def test_a_search_where_others_may_write_runs_and_goes_on_if_they_are_trusted(kind: str, tmp_path: Path) -> None:
    trainable: Any = _objective if kind == "function" else _Steps
    tmp_path.chmod(0o777)
    space = {"x": tune.grid_search([(1, 2), (3, 4)])}  # a tuple is pickled in the log
    found = tune.Tuner(trainable, param_space=space, run_config=_config("exp", tmp_path)).fit()
    assert [one.config["x"] for one in found] == [(1, 2), (3, 4)], "its own pickles are opened"
    code = f"from hocket import tune; print(len(tune.ResultGrid({str(tmp_path / 'exp')!r})))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "UntrustedFolderError" in ended.stderr, "another process did not write them"
    again = tune.Tuner.restore(tmp_path / "exp", trainable, trust=True).fit()
    assert [one.config["x"] for one in again] == [(1, 2), (3, 4)]


class _FailsOnce(_Steps):
    def step(self) -> dict[str, Any]:
        mark = Path(self.logdir, "mark")
        if self.count == 1 and not mark.exists():
            mark.touch()
            raise RuntimeError("once")
        return super().step()


@pytest.mark.parametrize("is_changed", [False, True])
def test_trials_open_what_their_search_has_pickled_and_nothing_else(is_changed: bool, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    mark = tmp_path / "evil"

    class Changed(_FailsOnce):
        def step(self) -> dict[str, Any]:
            if is_changed:
                for file in Path(self.logdir).glob("*/state.pickle"):
                    file.write_bytes(pickle.dumps(Evil(str(mark))))
            return super().step()

    run_config = tune.RunConfig(
        name="exp",
        storage_path=str(tmp_path),
        verbose=0,
        failure_config=tune.FailureConfig(max_failures=1),
        checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=1),
    )
    (found,) = tune.Tuner(Changed, run_config=run_config).fit()
    if is_changed:
        assert isinstance(found.error, exceptions.UntrustedFolderError)
        assert not mark.exists()
    else:
        assert found.error is None
        assert found.metrics["loss"] == 3.0
