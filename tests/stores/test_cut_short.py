"""What is written in the place of something else: killed at each use of the file system, it is the old one or the new
one, whole. The ways of training into a run's folder have a contract suite (``tests/train``)."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import pytest

from hocket import mesh
from hocket.data import preprocessors
from hocket.data.spark import manifest
from hocket.stores import atomic_folders, local_files, manifests, places
from hocket.testing import checkpoint_store_contract as suite
from hocket.train.checkpoints import storage
from hocket.tune.run import retention

pytestmark = pytest.mark.timeout(120)


class Way(Protocol):
    """A way to write versions of something to a place, each in place of the one before."""

    def write(self, target: Path, version: int) -> None: ...

    def read(self, target: Path) -> int:
        """Return the version that is there; fail if it is not whole."""


def fill(folder: Path, version: int) -> None:
    (folder / "inner").mkdir()
    (folder / "inner" / "value").write_text(f"{version}")
    (folder / "more").write_text(f"{version}" * 1000)


def look(folder: Path) -> int:
    version = int((folder / "inner" / "value").read_text())
    assert (folder / "more").read_text() == f"{version}" * 1000
    return version


class Folder:
    """As checkpoints of variables are saved."""

    def write(self, target: Path, version: int) -> None:
        with atomic_folders.AtomicFolder(target).writing() as folder:
            fill(folder, version)

    def read(self, target: Path) -> int:
        return look(atomic_folders.AtomicFolder(target).find())


class Given(Folder):
    """A checkpoint that a trial of a search gets from another one."""

    def write(self, target: Path, version: int) -> None:
        source = target.parent.parent / f"source-{target.parent.name}-{version}"
        source.mkdir()
        fill(source, version)
        retention.give(source, target)
        assert look(source) == version, "the other one keeps its own"


class Linked(Folder):
    """A link to another folder comes first, and a link to nothing: what it points to stays as it was."""

    def write(self, target: Path, version: int) -> None:
        other = target.parent.parent / f"other-{target.parent.name}"
        if version == 0:
            other.mkdir()
            fill(other, 0)
            target.symlink_to(other)
            return
        super().write(target, version)
        assert look(other) == 0


class Values:
    """Values on a mesh."""

    def write(self, target: Path, version: int) -> None:
        mesh.save(mesh.distribute({"a": np.full(7, version), "b": np.array(version)}, self.rules), target)

    def read(self, target: Path) -> int:
        found = mesh.load(target, self.rules)
        versions = {*found["a"].gather().tolist(), found["b"].gather().item()}
        (version,) = versions
        return int(version)

    @property
    def rules(self) -> mesh.LayoutMap:
        return mesh.LayoutMap(mesh.create_mesh({"data": 1}, framework="jax"), {})


class Preprocessor:
    """A preprocessor, which is one file."""

    def write(self, target: Path, version: int) -> None:
        preprocessors.Concatenator(["a", "b"], f"all {version}").save(target)

    def read(self, target: Path) -> int:
        return int(
            json.loads(preprocessors.Preprocessor.load(target).serialize())["arguments"]["output_column_name"][4:]
        )


class File:
    """A small file that survives a crash."""

    def write(self, target: Path, version: int) -> None:
        local_files.write_synced(target, b"%d" % version)

    def read(self, target: Path) -> int:
        return int(target.read_bytes())


class Manifest:
    """A manifest that says something else of the same files."""

    def write(self, target: Path, version: int) -> None:
        target.mkdir(exist_ok=True)
        storage.replace_manifest(target, {"version": version, "files": {}})

    def read(self, target: Path) -> int:
        found = storage.get_optional_manifest(target)
        assert found is not None
        return int(found["version"])


class SparksNotes:
    """The notes on files that Spark has written."""

    def write(self, target: Path, version: int) -> None:
        target.mkdir(exist_ok=True)
        note = manifest.Record(path="part", rows=version, bytes=1, blake2b="00")
        manifest.write(places.find_place(target, None, "the test"), [note])

    def read(self, target: Path) -> int:
        (found,) = manifest.read("the test", places.find_place(target, None, "the test"))
        return found.rows


class Case(NamedTuple):
    way: Way
    fewest: int
    """How often a write uses the file system at least."""
    left: Callable[[list[str]], bool] = lambda names: names == ["it"]
    """What may be at the place after a later write."""


CASES = {
    "a folder": Case(Folder(), 10),
    "a folder for a link": Case(Linked(), 10),
    "a trial's checkpoint": Case(Given(), 10),
    "values on a mesh": Case(Values(), 5),
    "a preprocessor": Case(
        Preprocessor(), 2, lambda names: "it" in names
    ),  # what a killed write leaves has a name that no other write knows,
    "a small file": Case(File(), 3),
    "a manifest": Case(Manifest(), 3),
    "Spark's notes": Case(SparksNotes(), 1),
}


@pytest.mark.parametrize("name", CASES)
def test_one_is_left_wherever_a_write_that_replaces_it_is_killed(name: str, tmp_path: Path) -> None:
    """And what was cut short, twice, is not in the way, nor left over after the next one."""
    if name != "values on a mesh":
        cut_short_everywhere(name, tmp_path)
        return
    pytest.importorskip("jax")
    program = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import jax, pathlib, test_cut_short as here; "
        f"here.cut_short_everywhere({name!r}, pathlib.Path({str(tmp_path)!r}))"
    )
    # JAX must not have been used where forks are made.
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=110, check=False)
    assert found.returncode == 0, found.stderr


def cut_short_everywhere(name: str, folder: Path) -> None:
    """Replace a version; kill the write at its first use of the file system, then at its second, and so on."""
    way, fewest, is_clean = CASES[name]

    def save(target: Path, version: int, number: int = 0) -> int:
        def run() -> None:
            count = suite.cut_short([target.parent], number, lambda: os.kill(os.getpid(), signal.SIGKILL))
            way.write(target, version)
            os._exit(3 if number and count() >= number else 0)

        return suite.fork(run)

    def read(target: Path) -> int:
        return suite.fork(lambda: os._exit(10 + way.read(target))) - 10

    seen: list[int] = []
    for number in range(1, suite.STEPS_AT_MOST):
        target = folder / str(number) / "it"
        target.parent.mkdir()
        assert save(target, 0) == 0
        ended = save(target, 1, number)
        assert ended in (-signal.SIGKILL, 0)
        seen.append(read(target))
        assert seen[-1] in (0, 1), f"after use {number} of the file system"
        assert save(target, 2, number) in (-signal.SIGKILL, 0)
        assert read(target) in (seen[-1], 2)
        assert save(target, 3) == 0
        assert read(target) == 3
        assert is_clean(sorted(path.name for path in target.parent.iterdir()))
        if ended == 0:
            assert seen[0] == 0
            assert seen[-1] == 1
            assert number > fewest, "it was killed at each use"
            return
    pytest.fail("a write uses the file system too often")


@pytest.mark.parametrize("is_first", [True, False])
def test_a_write_that_fails_leaves_what_was_there(is_first: bool, tmp_path: Path) -> None:
    place = atomic_folders.AtomicFolder(tmp_path / "outer" / "it")
    if not is_first:
        with place.writing() as folder:
            fill(folder, 0)

    def fail() -> None:
        with place.writing() as folder:
            (folder / "more").write_text("half")
            raise OSError("on purpose")

    with pytest.raises(OSError, match="on purpose"):
        fail()
    assert [path.name for path in place.path.parent.iterdir()] == ["it"] * (not is_first)
    assert is_first or look(place.path) == 0


@pytest.mark.parametrize("target", ["nothing", "folder", "it"])
def test_links_are_replaced_and_nothing_is_removed_through_them(target: str, tmp_path: Path) -> None:
    """Whichever of the names is a link: to nothing, to a folder, to itself."""
    (tmp_path / "folder").mkdir()
    fill(tmp_path / "folder", 7)
    for version, name in enumerate(["it", ".it.old", ".it.new"]):
        (tmp_path / "place").mkdir(exist_ok=True)
        with contextlib.suppress(FileExistsError):
            (tmp_path / "place" / name).symlink_to(tmp_path / (target if target != "it" else "place/it"))
        for again in range(3):
            Folder().write(tmp_path / "place" / "it", version + again)
            assert Folder().read(tmp_path / "place" / "it") == version + again
            assert [path.name for path in (tmp_path / "place").iterdir()] == ["it"]
            assert not (tmp_path / "place" / "it").is_symlink()
    assert look(tmp_path / "folder") == 7


@pytest.mark.parametrize("path", [".", "", "..", "/", "a/.."])
def test_a_folder_without_a_name_of_its_own_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match=r"is an existing folder.*Give the path of a folder in it"):
        atomic_folders.AtomicFolder(Path(path))


def test_everything_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a crash of the machine might leave a name, and no files."""
    fsync, rename = os.fsync, os.rename
    synced: set[int] = set()
    unsynced: list[list[str]] = []

    def note_sync(descriptor: int) -> None:
        synced.add(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    def note_rename(source: Any, target: Any) -> None:
        if Path(target) == tmp_path / "it":
            unsynced.append([path.name for path in [source, *source.rglob("*")] if path.stat().st_ino not in synced])
        rename(source, target)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "rename", note_rename)
    for version in range(2):
        Folder().write(tmp_path / "it", version)
    assert unsynced == [[], []]
    assert tmp_path.stat().st_ino in synced, "the name as well"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda file: file.unlink(), r"^'inner/value' cannot be read: .*No such file"),
        (lambda file: file.write_text("xx"), r"^'inner/value' has changed since it was saved \(2 bytes now, 1 then\)$"),
        (
            lambda file: file.write_text("x"),
            r"^'inner/value' has changed .* \(1 bytes now, 1 then, with another digest",
        ),
        (lambda file: (file.unlink(), file.mkdir()), r"^'inner/value' cannot be read: .*It is not a regular file"),
    ],
    ids=["gone", "length", "content", "kind"],
)
def test_a_file_that_is_not_what_it_was_is_named(change: Callable[[Path], Any], text: str, tmp_path: Path) -> None:
    fill(tmp_path, 4)
    records = {name: manifests.read_file(tmp_path / name) for name in ("inner/value", "more")}
    digests = {name: record.sha256 for name, record in records.items()}
    assert manifests.find_damage(tmp_path, records) is manifests.find_damage(tmp_path, digests) is None
    assert manifests.parse(manifests.encode({"files": manifests.describe(records)})) == {
        "files": {name: {"size_bytes": one.size_bytes, "sha256": one.sha256} for name, one in records.items()}
    }
    change(tmp_path / "inner" / "value")
    found = manifests.find_damage(tmp_path, records)
    assert found is not None
    assert re.search(text, str(found))
    by_digest = manifests.find_damage(tmp_path, digests)
    assert by_digest is not None
    assert by_digest.is_gone == found.is_gone == (not (tmp_path / "inner" / "value").exists())
