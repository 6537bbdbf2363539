"""Folders of results among those of others, below a folder like /tmp: what another user has laid at the name of a run
or a search leads nothing of ours elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from hocket import exceptions, train, tune
from hocket.data import preprocessors
from tests import strangers

pytestmark = [pytest.mark.usefixtures("session"), strangers.needs_root]

shared_place = strangers.shared_place


def _loop() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "weights").write_text("1")
        train.report({"loss": 1.0}, checkpoint=train.Checkpoint(folder))


def _fit(place: Path) -> object:
    keeps = train.CheckpointConfig(num_to_keep=1)
    config = train.RunConfig(name="mine", storage_path=str(place), checkpoint_config=keeps)
    return train.DataParallelTrainer(_loop, run_config=config).fit()


def _search(place: Path) -> object:
    config = tune.RunConfig(name="mine", storage_path=str(place), verbose=0)
    return tune.Tuner(lambda config: {"loss": 1.0}, run_config=config).fit()


def _report(place: Path) -> None:
    command = [str(Path(sys.executable).with_name("hocket")), "report", str(place / "mine")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    if done.returncode:
        raise exceptions.UntrustedFolderError(done.stderr)


WRITERS: dict[str, Callable[[Path], object]] = {"fit": _fit, "search": _search, "report": _report}


def _lay(trap: str, mine: Path, home: Path) -> None:
    """As another user, make the folder of a run with a trap in it."""
    if trap == "link":
        mine.symlink_to(home)
        return
    mine.mkdir()
    inside = {"log": "run.jsonl", "report": "report.html", "staging": ".staging", "checkpoint": "checkpoint_000007"}
    if trap == "pipe":
        os.mkfifo(mine / "report.html")
    elif trap in inside:
        (mine / inside[trap]).symlink_to(home / "run.jsonl" if trap in ("log", "report") else home)


TRAPS = ("link", "log", "report", "pipe", "staging", "checkpoint", "his folder")


@pytest.mark.parametrize("trap", TRAPS)
@pytest.mark.parametrize("writer", [*WRITERS])
def test_nothing_is_written_where_another_user_leads(writer: str, trap: str, shared_place: Path) -> None:
    home = shared_place.parent / "home"
    _fit(home)
    (home / "mine").rename(shared_place.parent / "run")
    home.rmdir()
    (shared_place.parent / "run").rename(home)  # a run of this user's, which may be the one that the link leads to
    home.chmod(0o755)
    before = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    strangers.run_as_other(lambda: _lay(trap, shared_place / "mine", home))
    with pytest.raises(exceptions.UntrustedFolderError, match=r"Nothing is written to .*mine.* belongs to user 1002"):
        WRITERS[writer](shared_place)
    assert before == {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}


@pytest.mark.parametrize("writer", ["fit", "search"])
def test_a_link_of_ones_own_leads_on(writer: str, shared_place: Path) -> None:
    home = shared_place.parent / "home"
    home.mkdir()
    (shared_place / "mine").symlink_to(home)
    WRITERS[writer](shared_place)
    assert [*home.iterdir()]


def test_a_folder_that_is_shared_on_purpose(shared_place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    strangers.run_as_other((shared_place / "mine").mkdir)
    monkeypatch.setenv("HOCKET_TRUSTED_FOLDERS", str(shared_place))
    _fit(shared_place)
    shared_place.chmod(0o777)  # a team's folder: no sticky bit
    monkeypatch.delenv("HOCKET_TRUSTED_FOLDERS")
    _fit(shared_place)


def test_a_preprocessor_is_read_from_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.json")
    with pytest.raises(OSError, match="It is not a regular file, but a pipe"):
        preprocessors.Preprocessor.load(tmp_path / "a.json")
