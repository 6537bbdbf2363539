"""Addresses, calls that end, and folders that are in a store whole or not at all."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from hocket import exceptions, train, tune
from hocket.stores import calls, commits, files, manifests, places

MANIFEST = "manifest.json"


@pytest.fixture
def store(tmp_path: Path) -> places.Place:
    """A folder that is used as a store."""
    filesystem = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    return places.find_place("shelf", filesystem, "a test")


@pytest.fixture
def shelf(store: places.Place) -> commits.Shelf:
    return commits.Shelf(store, MANIFEST, {"loose"})


def make_folder(path: Path, contents: dict[str, bytes]) -> Path:
    for name, data in contents.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    described = {
        name: {"size_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in contents.items()
    }
    (path / MANIFEST).write_text(json.dumps({"files": described}))
    return path


# -- places --


def test_what_is_of_this_machine_needs_no_store(tmp_path: Path) -> None:
    assert places.locate("some/folder", None, "a test") == "some/folder"
    assert places.locate(f"file://{tmp_path}", None, "a test") == str(tmp_path)
    assert places.locate(Path("file:/a b"), None, "a test") == "/a b"
    assert places.locate("/x", fs.LocalFileSystem(), "a test") == "/x"
    assert places.locate("/x", pytest.importorskip("fsspec").filesystem("file"), "a test") == "/x"


@pytest.mark.parametrize(
    ("address", "path"),
    [
        ("s3://bucket/a/b?region=us-east-1", "bucket/a/b"),
        ("s3://bucket/a/b/?region=us-east-1", "bucket/a/b"),
        (Path("s3://bucket/a/b"), "bucket/a/b"),
        ("gs://bucket/a/b?anonymous=true", "bucket/a/b"),
        ("s3://anonymous@bucket/a/b?region=us-east-1", "bucket/a/b"),
        ("s3://key:hush@bucket/a/b?region=us-east-1", "bucket/a/b"),
        ("memory://a/b", "/a/b"),
    ],
)
def test_an_address_is_a_place(address: str, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    found = places.locate(address, None, "a test")
    assert isinstance(found, places.Place)
    assert found.path == path
    assert (found.name, found.join("c", "d").path) == ("b", f"{path}/c/d")
    outer = found.find_parent()
    assert outer is not None
    assert outer.path == path.removesuffix("/b")


def test_messages_have_no_passwords() -> None:
    place = places.find_place("s3://bucket/a?access_key=me&secret_key=hush&region=us-east-1", None, "a test")
    assert place.shown == "s3://bucket/a"
    assert place.join("b").shown == "s3://bucket/a/b"
    with pytest.raises(ValueError, match=r"the address 's3://bucket/a' has the unknown option 'password'") as caught:
        places.find_place("s3://bucket/a?password=hush", None, "a test")
    assert "hush" not in str(caught.value)
    for address in ("s3://me:hush@bucket/a?region=us-east-1", "s3://bucket/a?secret_key=hush&access_key=me"):
        shown = [repr(places.find_place(address, None, "a test")), repr(train.RunConfig(storage_path=address))]
        shown += [repr(tune.RunConfig(storage_path=address)), repr(train.Checkpoint(address))]
        assert not any("hush" in one for one in shown)
        assert "storage_path='s3://bucket/a'" in shown[1]
    with pytest.raises(TypeError, match="but received a list") as caught_type:
        train.RunConfig(storage_path=["s3://bucket?secret_key=hush"])  # type: ignore[arg-type]
    assert "hush" not in str(caught_type.value)


def test_names_in_addresses_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    assert places.find_place("s3://bucket/exp#1?region=us-east-1", None, "a test").path == "bucket/exp#1"
    for address, match in (
        ("s3://bucket/exp?1", "which options must follow"),
        ("s3://bucket//a", "has '' in its path"),
        ("s3://bucket/a/../b", "has '..' in its path"),
        ("s3://bucket/a/..", "has '..' in its path"),
        ("s3://bucket/a\tb", r"has '\\t' in its path"),
        ("s3://who@bucket/a", "only anonymous@ or key:secret@ may stand"),
        ("gs://bucket/a?region=b", "has the unknown option 'region'"),
    ):
        with pytest.raises(ValueError, match=match):
            places.find_place(address, None, "a test")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    found = places.find_place("s3://bucket/a?region=us-east-1&access_key=a&secret_key=b", None, "a test")
    with pytest.raises(OSError, match=r"127\.0\.0\.1|NETWORK_CONNECTION"):
        found.filesystem.get_file_info("bucket/a")


@pytest.mark.parametrize(
    ("given", "filesystem", "error", "message"),
    [
        (
            "floppy://a",
            None,
            ValueError,
            r"a test: the address 'floppy://a' has the unknown scheme 'floppy'.* Write a path of this machine, s3://",
        ),
        ("a", "s3", TypeError, r"a test: filesystem must be one of pyarrow's or fsspec's, but received 's3'"),
    ],
)
def test_what_is_no_place(given: str, filesystem: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        places.locate(given, filesystem, "a test")


# -- calls --


def build_failing(error: Exception, times: int) -> tuple[Callable[[], str], list[int]]:
    """Return a function that raises so often before it returns, and what counts its calls."""
    made: list[int] = []

    def call() -> str:
        made.append(len(made))
        if len(made) <= times:
            raise error
        return "done"

    return call, made


def test_what_fails_now_and_then_is_tried_again(store: places.Place) -> None:
    call, made = build_failing(OSError("busy"), calls.TRIES - 1)
    assert calls.ask(store, "write", call) == "done"
    assert len(made) == calls.TRIES
    call, made = build_failing(OSError("busy"), calls.TRIES)
    with pytest.raises(exceptions.StoreError, match=r"cannot write 'shelf', even after 3 tries: busy\. Check"):
        calls.ask(store, "write", call)


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (PermissionError("no"), exceptions.StoreAccessError),
        (OSError("AWS Error ACCESS_DENIED during HeadObject"), exceptions.StoreAccessError),
        (FileNotFoundError("gone"), FileNotFoundError),
        (NotImplementedError("it cannot write"), exceptions.StoreError),
    ],
)
def test_what_is_said_for_good_is_not_asked_again(
    error: Exception, raised: type[Exception], store: places.Place
) -> None:
    call, made = build_failing(error, 9)
    with pytest.raises(raised):
        calls.ask(store, "write", call)
    assert len(made) == 1


def test_silence_ends(store: places.Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "PATIENCE_SECONDS", 0.05)
    released = threading.Event()
    with pytest.raises(exceptions.StoreError, match=r"did not list 'shelf' within 0 s.*HOCKET_STORE_TIMEOUT_S"):
        calls.ask(store, "list", released.wait)
    released.set()


# -- commits --


def test_a_folder_goes_there_and_back(shelf: commits.Shelf, tmp_path: Path) -> None:
    contents = {"a": b"1", "in/b": b"2" * 1000, "empty": b""}
    folder = make_folder(tmp_path / "source", contents)
    (folder / "loose").write_bytes(b"not in the manifest")
    shelf.commit("one", folder, shelf.claim())
    commits.fetch(shelf.place.join("one"), tmp_path / "copy", MANIFEST, shelf.loose)
    assert {name: (tmp_path / "copy" / name).read_bytes() for name in contents} == contents
    assert shelf.list_folders()["one"].keys() == {*contents, "loose", MANIFEST}


def test_what_is_not_committed_is_not_there_and_is_swept(shelf: commits.Shelf, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "source", {"a": b"1"})
    token = shelf.claim()
    shelf.commit("whole", folder, token)
    files.write(shelf.place.join(commits.PENDING, "whole"), b"")  # killed behind the manifest
    files.write(shelf.place.join(commits.PENDING, "half"), b"")
    files.write(shelf.place.join("half", "a"), b"1")
    files.write(shelf.place.join("other", "a"), b"somebody else's")
    with pytest.raises(FileNotFoundError, match="or it was not written completely"):
        commits.fetch(shelf.place.join("half"), tmp_path / "copy", MANIFEST)
    shelf.sweep()
    assert shelf.list_folders().keys() == {"", "whole", "other"}
    shelf.release(token)
    assert shelf.list_folders().keys() == {"whole", "other"}


def test_a_later_writer_holds_the_shelf(shelf: commits.Shelf, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "source", {"a": b"1"})
    first = shelf.claim()
    second = shelf.claim()
    with pytest.raises(exceptions.StoreError, match="Another process has begun to write to 'shelf'"):
        shelf.commit("one", folder, first)
    shelf.release(first)
    shelf.commit("one", folder, second)
    assert shelf.read_manifest("one") is not None


@pytest.mark.parametrize("how", ["changed", "cut", "gone"])
def test_damage_is_seen(how: str, shelf: commits.Shelf, tmp_path: Path) -> None:
    shelf.commit("one", make_folder(tmp_path / "source", {"a": b"12", "b": b"3"}))
    place, manifest = shelf.place.join("one"), shelf.read_manifest("one")
    assert manifest is not None
    if how == "gone":
        files.remove(place.join("a"))
    else:
        files.write(place.join("a"), b"xy" if how == "changed" else b"x")
    gap = manifests.find_gap(manifests.read_records(manifest), files.list_sizes(place))
    assert (gap is None) == (how == "changed"), "a size is seen without reading"
    with pytest.raises(commits.DamagedError, match=r"'a' (has changed|is missing)"):
        commits.fetch(place, tmp_path / "copy", MANIFEST)
    shelf.move_aside("one", "one.damaged")
    assert shelf.list_folders().keys() == {"one.damaged"}
    assert MANIFEST not in shelf.list_folders()["one.damaged"]


def test_a_folder_that_changes_meanwhile_is_not_committed(shelf: commits.Shelf, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "source", {"a": b"1"})
    (folder / "a").write_bytes(b"2")
    with pytest.raises(commits.DamagedError, match="'a' has changed since it was saved"):
        shelf.commit("one", folder)
    assert shelf.read_manifest("one") is None


def test_a_damaged_manifest_is_no_missing_one(store: places.Place, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "mine", {"a": b"12"})
    place = store.join("one")
    commits.put(place, folder, MANIFEST)
    files.write(place.join("a"), b"evil")
    files.write(place.join(MANIFEST), b'{"files": {"a"')
    with pytest.raises(commits.DamagedError, match=f"'{MANIFEST}' is damaged"):
        commits.fetch(place, tmp_path / "there", MANIFEST)


def test_one_folder_alone(store: places.Place, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "source", {"a": b"1"})
    commits.put(store.join("one"), folder, MANIFEST)
    (folder / "b").write_bytes(b"2")
    commits.put(store.join("one"), folder, MANIFEST)
    assert files.list_sizes(store.join("one")).keys() == {"a", "b", MANIFEST}
    files.write(store.join("other", "a"), b"somebody else's")
    with pytest.raises(FileExistsError, match=r"'shelf/other' exists but has no manifest\.json"):
        commits.put(store.join("other"), folder, MANIFEST)
    with pytest.raises(ValueError, match="'shelf' is a bucket"):
        commits.put(store, folder, MANIFEST)
