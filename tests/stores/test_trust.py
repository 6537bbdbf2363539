"""Whose files are opened: who may write a file, over all that lies on the way to it; as root and as another user."""

from __future__ import annotations

import grp
import os
import pickle
import pwd
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import strangers

from hocket import exceptions
from hocket.stores import places, trust

STRANGER, OTHER = 1002, 1003
"""Numbers of users that need no account."""

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's files")


@pytest.fixture
def top() -> Iterator[Path]:
    """A folder that others can pass, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def _make(top: Path) -> Path:
    """Make ``outer/inner/file`` with a pickle."""
    file = top / "outer" / "inner" / "file"
    file.parent.mkdir(parents=True)
    file.write_bytes(pickle.dumps({"a": [1]}))
    for path in (file.parent, file.parent.parent):
        path.chmod(0o755)
    file.chmod(0o644)
    return file


MODES = [
    *((0o700, False), (0o755, False), (0o750, False), (0o2755, False), (0o1755, False)),
    *((0o777, True), (0o757, True), (0o775, True), (0o770, True), (0o2775, True), (0o733, True)),
]
"""Modes of a folder with a group that is not its owner's own, and whether others may write there."""


@needs_root
@pytest.mark.parametrize(("mode", "is_open"), MODES)
@pytest.mark.parametrize("step", ["outer", "outer/inner"])
def test_a_folder_on_the_way_that_others_may_write(step: str, mode: int, is_open: bool, top: Path) -> None:
    file = _make(top)
    os.chown(top / step, 0, STRANGER)
    (top / step).chmod(mode)
    found = trust.find_stranger(file)
    assert (found is not None) == is_open, found
    if is_open:
        assert str(top / step) in str(found)
        with pytest.raises(exceptions.UntrustedFolderError, match=rf"may write to .*{step}.*trust=True"):
            trust.load_file(file, "A test")
    else:
        assert trust.load_file(file, "A test") == {"a": [1]}


@needs_root
@pytest.mark.parametrize("step", ["outer", "outer/inner", "outer/inner/file"])
def test_what_is_a_strangers_on_the_way(step: str, top: Path) -> None:
    file = _make(top)
    os.chown(top / step, STRANGER, STRANGER)
    assert f"{str(top / step)!r} belongs to user {STRANGER}" in str(trust.find_stranger(file))
    strangers.run_as_other(lambda: _expect(file, None), STRANGER)  # his own, and root's above it
    strangers.run_as_other(lambda: _expect(file, str(top / step)), OTHER)


@needs_root
@pytest.mark.parametrize("mode", [0o666, 0o646, 0o664, 0o602, 0o620])
def test_a_file_that_others_may_write(mode: int, top: Path) -> None:
    file = _make(top)
    os.chown(file, 0, STRANGER)
    file.chmod(mode)
    assert str(file) in str(trust.find_stranger(file))


@needs_root
def test_a_shared_folder_with_the_sticky_bit_may_hold_ones_own(top: Path) -> None:
    file = _make(top)
    for mode in (0o1777, 0o1775, 0o3777):
        (top / "outer").chmod(mode)
        assert trust.find_stranger(file) is None
    (top / "outer").chmod(0o1777)
    os.chown(top / "outer" / "inner", STRANGER, STRANGER)
    assert "belongs to user" in str(trust.find_stranger(file)), "what a stranger has put there is not"
    os.chown(top / "outer" / "inner", 0, 0)
    os.chown(top / "outer", STRANGER, STRANGER)
    assert "belongs to user" in str(trust.find_stranger(file)), "the owner of such a folder may replace all in it"


@needs_root
@pytest.mark.parametrize("owner", [0, STRANGER])
@pytest.mark.parametrize("target", ["mine", "his"])
@pytest.mark.parametrize("is_relative", [False, True])
def test_links_belong_to_somebody_and_lead_somewhere(owner: int, target: str, is_relative: bool, top: Path) -> None:
    mine, his = _make(top), top / "his" / "file"
    his.parent.mkdir()
    his.write_bytes(mine.read_bytes())
    for path in (his, his.parent):
        os.chown(path, STRANGER, STRANGER)
    shared = top / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    folder = {"mine": mine.parent, "his": his.parent}[target]
    (shared / "link").symlink_to(os.path.relpath(folder, shared) if is_relative else folder)
    os.chown(shared / "link", owner, owner, follow_symlinks=False)
    is_ours = owner == 0 and target == "mine"
    assert (trust.find_stranger(shared / "link" / "file") is None) == is_ours


def test_links_in_circles_end(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match=r"[Tt]oo many"):
        trust.find_stranger(tmp_path / "a" / "file")


def test_dots_are_followed_as_the_system_does(tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "link").symlink_to("deep/er")
    (tmp_path / "deep" / "file").write_bytes(pickle.dumps(3))
    (tmp_path / "deep").chmod(0o777)
    found = trust.find_stranger(tmp_path / "link" / ".." / "file")
    assert str(tmp_path / "deep") in str(found), "not the folder that has the link"


def test_a_users_own_group_is_nobody_else(tmp_path: Path) -> None:
    user = pwd.getpwuid(os.geteuid()).pw_name
    own = next((one.gr_gid for one in grp.getgrall() if one.gr_name == user and {*one.gr_mem} <= {user}), None)
    if own is None:
        pytest.skip("this user has no group of its own")
    file = _make(tmp_path)
    os.chown(file.parent, -1, own)
    file.parent.chmod(0o775)
    assert trust.find_stranger(file) is None


# --- what trusts, all the same ----------------------------------------------------------------------------------------


@pytest.fixture
def open_file(top: Path) -> Path:
    file = _make(top)
    file.parent.chmod(0o777)
    return file


def test_trust_is_said_at_the_call_or_in_the_environment(open_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(**how: Any) -> object:
        return trust.load_file(open_file, "A test", **how)

    with pytest.raises(exceptions.UntrustedFolderError, match=r"everybody may write to .*HOCKET_TRUSTED_FOLDERS"):
        read()
    assert read(trust=True) == {"a": [1]}
    for named, is_enough in (
        (str(open_file.parent), True),
        (f"/nowhere:{open_file.parent.parent}", True),
        (f"{open_file.parent}x", False),
        ("/nowhere", False),
        ("", False),
        (":", False),
    ):
        monkeypatch.setenv(trust.TRUSTED, named)
        if is_enough:
            assert read() == {"a": [1]}
        else:
            with pytest.raises(exceptions.UntrustedFolderError):
                read()


def test_what_this_process_has_pickled_is_its_own(open_file: Path) -> None:
    open_file.write_bytes(trust.note(pickle.dumps({"mine": 1})))
    assert trust.load_file(open_file, "A test") == {"mine": 1}
    open_file.write_bytes(pickle.dumps({"mine": 2}))
    with pytest.raises(exceptions.UntrustedFolderError):
        trust.load_file(open_file, "A test")


def test_nothing_runs_before_it_is_refused(open_file: Path, tmp_path: Path) -> None:
    open_file.write_bytes(pickle.dumps(Evil(str(tmp_path / "mark"))))
    with pytest.raises(exceptions.UntrustedFolderError):
        trust.load_file(open_file, "A test")
    assert not (tmp_path / "mark").exists()
    trust.load_file(open_file, "A test", trust=True)
    assert (tmp_path / "mark").exists(), "it would have run"


class Evil:
    """Makes a folder when it is unpickled."""

    def __init__(self, mark: str) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.mark,)


@pytest.mark.parametrize("blob", [b"", b"x", b"\x80\x05", pickle.dumps(3)[:-1], b"cnowhere\nClass\n."])
def test_what_cannot_be_opened_is_named(blob: bytes, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(blob)
    with pytest.raises(exceptions.SerializationError, match=r"A test cannot unpickle the objects in .*file"):
        trust.load_file(tmp_path / "file", "A test")


def test_a_store_in_a_file_of_this_machine_is_looked_at(open_file: Path) -> None:
    pytest.importorskip("fsspec")
    fs = pytest.importorskip("pyarrow.fs")
    import zipfile

    with zipfile.ZipFile(open_file.parent / "x.zip", "w") as archive:
        archive.writestr("run/file", "x")
    inner = open_file.parent
    stores = [
        places.find_place(f"zip://run::{inner}/x.zip", None, "A test"),
        places.find_place(f"zip://run::file://{inner}/x.zip", None, "A test"),
        places.find_place("run", fs.SubTreeFileSystem(str(inner), fs.LocalFileSystem()), "A test"),
    ]
    for place in stores:
        with pytest.raises(exceptions.UntrustedFolderError, match="everybody may write"):
            trust.Opener(place, "A test").check()
        with pytest.raises(exceptions.UntrustedFolderError, match="everybody may write"):
            trust.Opener(place.join("deeper", "file"), "A test").check()
    trust.Opener(places.find_place("memory://run", None, "A test"), "A test").check()


def _expect(file: Path, named: str | None) -> None:
    found = trust.find_stranger(file)
    assert (found is None) == (named is None), found
    assert named is None or named in str(found)
