"""Names from outside: which are refused, and that none leads out of its folder."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import tarfile
import tempfile
import warnings
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket import exceptions, train, tune
from hocket.ps import errors as ps_errors
from hocket.ps.checkpoint import checkpoints
from hocket.stores import commits, files, manifests, names, places
from hocket.train.checkpoints import storage

GOOD = ["a", "a/b.npy", ".hidden", "a b", "...", "..a", "a..", "ünïcödé", "a\\b", "C", "a:b", "-rf", "x" * 255, "a\nb"]

BAD = [
    *("", "/", "/etc/passwd", "//x", "..", "../x", "a/../../x", "a/..", ".", "./x", "a/./b", "a//b", "a/", "a\0b"),
    *("C:\\x", "C:/x", "c:", "..\\x", "a\\..\\x", "a/b/../../../x", "../" * 50 + "x"),
]

NOT_TEXT: list[Any] = [None, 7, b"a", ["a"], {"a": 1}, True]


@pytest.mark.parametrize("name", GOOD)
def test_names_that_stay(name: str, tmp_path: Path) -> None:
    assert names.check(name, "It") == name
    assert names.join(tmp_path, name, "It") == tmp_path / name


@pytest.mark.parametrize("name", [*BAD, *NOT_TEXT])
def test_names_that_lead_out_are_refused(name: Any, tmp_path: Path) -> None:
    for refuse in (lambda: names.check(name, "The log"), lambda: names.join(tmp_path, name, "The log")):
        with pytest.raises(exceptions.UnsafeNameError, match=r"The log has the name .* is refused: it .*rename"):
            refuse()


def test_a_single_name_has_no_folder() -> None:
    with pytest.raises(exceptions.UnsafeNameError, match="it contains a slash"):
        names.check("a/b", "The log", is_single=True)


@given(st.text(st.sampled_from("./\\a:C\0 \n"), max_size=12))
def test_what_is_taken_is_below_the_folder(name: str) -> None:
    if names.find_fault(name) is None:
        assert os.path.normpath(f"/top/folder/{name}").startswith("/top/folder/")
        assert os.path.normpath(f"/top/folder/{name}") != "/top/folder/"


@pytest.mark.parametrize("name", ["link", "link/x", "a/link", "a/link/x"])
@pytest.mark.parametrize("target", ["..", "/etc", "nowhere"])
def test_links_on_the_way_are_refused(name: str, target: str, tmp_path: Path) -> None:
    link = tmp_path / name.removesuffix("/x")
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(target)
    with pytest.raises(exceptions.UnsafeNameError, match="is a link to"):
        names.join(tmp_path, name, "The log")


def test_the_folder_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert names.join(tmp_path / "link", "a", "It") == tmp_path / "link" / "a"


# --- all that brings files from stores and archives -------------------------------------------------------------------

#: As keys of a bucket: behind the folder's path and a slash. Some stores make another name of them, which stays inside.
KEYS = [one for one in BAD if one and "\0" not in one]


@pytest.fixture
def bucket(tmp_path: Path) -> Any:
    """A store in this process, whose keys are as they were given; its folder ``top/run`` has one good file."""
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    yield memory
    memory.store.clear()


def _put(memory: Any, key: str, data: bytes = b"evil") -> None:
    made: Any = importlib.import_module("fsspec.implementations.memory").MemoryFile(memory, key, data)
    memory.store[key] = made


def _list_outside(tmp_path: Path, inside: Path) -> list[str]:
    return sorted(
        str(path.relative_to(tmp_path))
        for path in tmp_path.rglob("*")
        if path.is_file() and not path.is_relative_to(inside)
    )


@pytest.mark.parametrize("key", KEYS)
def test_no_key_of_a_bucket_leads_out(key: str, bucket: Any, tmp_path: Path) -> None:
    _put(bucket, "/top/run/model.npy", b"good")
    _put(bucket, f"/top/run/{key}")
    target = tmp_path / "a" / "b"
    place = places.find_place("memory://top/run", None, "a test")
    tried = {
        "fetch": lambda: commits.fetch(place, target, "manifest.json"),
        "bring": lambda: files.bring(place, key, target, 4),
        "to_directory": lambda: train.Checkpoint("memory://top/run").to_directory(target),
        "load_checkpoint": lambda: checkpoints.load_checkpoint("memory://top/run"),
        "list_sizes": lambda: files.list_sizes(place),
    }
    mine = (
        *(commits.DamagedError, exceptions.HocketError, train.TransferError),
        *(ps_errors.CheckpointDamagedError, FileNotFoundError),
    )
    for name, call in tried.items():
        try:
            call()
        except mine:
            pass
        except Exception as error:  # noqa: BLE001 (any that is not ours is what is looked for)
            pytest.fail(f"{name} with {key!r} raises a bare {type(error).__name__}: {error}")
    assert _list_outside(tmp_path, target) == []


@pytest.mark.parametrize("name", ["ABSOLUTE", *[one for one in BAD if one.strip("/") and "\0" not in one]])
@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_no_name_of_an_archive_leads_out(name: str, kind: str, tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    target, path = tmp_path / "a" / "b", tmp_path / f"x.{kind}"
    name = f"{tmp_path}/evil.txt" if name == "ABSOLUTE" else name
    members = {"ck/model.bin": b"good", f"ck/{name}": b"evil", name: b"evil"}
    if kind == "zip":
        with zipfile.ZipFile(path, "w") as archive, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for member, data in members.items():
                archive.writestr(member, data)
    else:
        with tarfile.open(path, "w") as tar:
            for member, data in members.items():
                info = tarfile.TarInfo(member)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    for address in (f"{kind}://ck::{path}", f"{kind}://::{path}"):
        with contextlib.suppress(exceptions.HocketError, train.TransferError, FileNotFoundError):
            train.Checkpoint(address).to_directory(target)
    assert _list_outside(tmp_path, target) == [path.name]


@pytest.mark.parametrize("name", [*KEYS, "a/../x"])
def test_no_manifest_names_what_is_outside(name: str, tmp_path: Path) -> None:
    record = {"size_bytes": 4, "sha256": "0" * 64}
    assert manifests.parse(b'{"files": {"a": {"size_bytes": 4, "sha256": "x"}}}') is not None
    folder = tmp_path / "checkpoint_000000"
    folder.mkdir()
    storage.replace_manifest(folder, {"files": {name: record}})
    assert storage.get_optional_manifest(folder) is None


# --- the log of a search ----------------------------------------------------------------------------------------------


def _make_log(folder: Path, trial_folder: str, checkpoint: str) -> None:
    from tests.test_foreign_files import SEARCH_LINES, write_lines

    lines = [dict(one) for one in SEARCH_LINES[:6]]
    lines[1]["folder"] = trial_folder
    lines[5]["checkpoint"] = checkpoint
    more = [dict(lines[5], checkpoint=f"checkpoint_{number:06d}") for number in range(1, 4)]
    write_lines(folder / "search.jsonl", [*lines, *more])


@pytest.mark.usefixtures("session")
@pytest.mark.parametrize(
    ("trial_folder", "checkpoint"),
    [("../mine", "data"), ("/mine", "data"), ("f_0", "../../mine/data"), ("f_0", ".."), ("a/../../mine", "data")],
)
def test_a_log_of_a_search_names_nothing_outside(trial_folder: str, checkpoint: str, tmp_path: Path) -> None:
    mine = storage.Storage(str(tmp_path), "mine")
    (mine.path / "data").mkdir(parents=True)
    (mine.path / "data" / "thesis").write_text("x")
    storage.adopt(mine.path / "data", {"number": 0, "metrics": {}})
    trial_folder = f"{tmp_path}/mine" if trial_folder == "/mine" else trial_folder
    _make_log(tmp_path / "search", trial_folder, checkpoint)
    with pytest.raises(tune.TuneError, match=r"has the name .* which is refused"):
        _restore(tmp_path / "search")
    assert (mine.path / "data" / "thesis").read_text() == "x"


@pytest.mark.usefixtures("session")
def test_a_trial_folder_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    mine = tmp_path / "mine" / "checkpoint_000000"
    mine.mkdir(parents=True)
    (mine / "thesis").write_text("x")
    storage.adopt(mine, {"number": 0, "metrics": {}})
    _make_log(tmp_path / "search", "f_0", "checkpoint_000000")
    (tmp_path / "search" / "f_0").symlink_to("../mine")
    with pytest.raises(exceptions.UnsafeNameError, match="is a link to"):
        _restore(tmp_path / "search")
    assert (mine / "thesis").read_text() == "x"


def _save_twice(config: dict[str, object]) -> None:
    for _ in range(2):
        with tempfile.TemporaryDirectory() as folder:
            tune.report({"loss": 1.0}, checkpoint=train.Checkpoint(folder))


def _restore(folder: Path) -> None:
    tune.Tuner.restore(
        folder,
        _save_twice,
        param_space={"x": 1},
        tune_config=tune.TuneConfig(num_samples=1),
        run_config=tune.RunConfig(verbose=0, checkpoint_config=tune.CheckpointConfig(num_to_keep=1)),
    ).fit()
