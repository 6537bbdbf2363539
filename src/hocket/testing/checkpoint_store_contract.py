"""The contract of checkpoint stores: tests for any code that brings ranks' files into a run's folder.

To test a store, inherit and define how to open it at a place::

    class TestMine(CheckpointStoreContract):
        def open_store(self, place, num_to_keep=None):
            return MyStore(place, num_to_keep)  # a CheckpointStore

Each test has a place of its own. A store that is opened there again, in this process or another one, must find the
committed checkpoints. To interrupt a save at every moment, the suite saves in a forked process, and kills it, or raises
an error in it, at its first, second, third... use of the file system.

Abilities that `CheckpointStoreContract.limits` may name, each with a sentence that says why it is missing:

========== ==========================================================================================================
``parts``  several ranks save parts of one checkpoint
``damage`` a committed checkpoint with changed files is skipped
``errors`` an error of the file system during a save leaves the earlier checkpoints as they are
========== ==========================================================================================================
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import pytest

from hocket.testing import limits

STEPS_AT_MOST: Final = 400
"""More uses of the file system than a save of three small files needs. A guess."""

NOT_UTF_8: Final = os.fsdecode(b"caf\xe9")
"""A file name that is not UTF-8, as on disks of other systems."""

_RAISED, _RETURNED, _WRONG = 3, 4, 5
"""Exit codes of a forked process."""


class CheckpointStore(Protocol):
    """The methods of a store that the suite needs."""

    def save(self, sources: Sequence[Path], step: int) -> None:
        """Commit a checkpoint.

        Args:
            sources: The folder of each rank.
            step: The step of the checkpoint, unique at a place.
        """

    def list_steps(self) -> list[int]:
        """Return the steps of the whole checkpoints at the place, in the order of their commits."""

    def open_checkpoint(self, step: int) -> Path:
        """Return a folder with the files of a step's checkpoint."""


class CheckpointStoreContract(limits.DeclaresLimits):
    """The contract of every checkpoint store."""

    def open_store(self, place: Path, num_to_keep: int | None = None) -> CheckpointStore:
        """Open the store at a place. Subclasses must override this.

        Args:
            place: A folder, which may have checkpoints of an earlier run, or remains of a killed run.
            num_to_keep: The number of newest checkpoints to keep. Default: all.
        """
        raise NotImplementedError(f"{type(self).__name__} needs open_store(self, place, num_to_keep).")

    @pytest.fixture
    def place(self, tmp_path: Path) -> Path:
        """The place of a test's store."""
        return tmp_path / "place"

    # --- saving -------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("kind", ["odd names", "empty", "many", "large", "deep"])
    def test_what_is_saved_is_found_whole(self, kind: str, place: Path, tmp_path: Path) -> None:
        source = make_folder(tmp_path / "source", build_files(kind))
        before = read_folder(source)
        store = self.open_store(place)
        store.save([source], 7)
        assert read_folder(source) == before, "the source stays as it is"
        (source / "later").write_bytes(b"not saved")
        for found in (store, self.open_store(place)):
            assert found.list_steps() == [7]
            check_folder(found.open_checkpoint(7), before)

    def test_another_process_finds_what_was_committed(self, place: Path, tmp_path: Path) -> None:
        source = make_folder(tmp_path / "source", build_files("deep"))
        self.open_store(place).save([source], 3)

        def look() -> None:
            store = self.open_store(place)
            assert store.list_steps() == [3]
            check_folder(store.open_checkpoint(3), read_folder(source))

        assert fork(look) == _RETURNED

    @pytest.mark.needs("parts")
    def test_the_parts_of_all_ranks_are_one_checkpoint(self, place: Path, tmp_path: Path) -> None:
        parts = [make_folder(tmp_path / f"{rank}", {f"shard-{rank}": b"s" * rank, "same": b"1"}) for rank in range(3)]
        self.open_store(place).save(parts, 0)
        expected = {"shard-0": b"", "shard-1": b"s", "shard-2": b"ss", "same": b"1"}
        check_folder(self.open_store(place).open_checkpoint(0), expected)

    def test_links_are_saved_as_what_they_lead_to(self, place: Path, tmp_path: Path) -> None:
        outside = make_folder(tmp_path / "outside", {"weights": b"w", "inner/bias": b"b"})
        source = make_folder(tmp_path / "source", {"own": b"o"})
        (source / "file").symlink_to(outside / "weights")
        (source / "folder").symlink_to(outside / "inner")
        self.open_store(place).save([source], 0)
        (outside / "weights").write_bytes(b"changed")
        check_folder(
            self.open_store(place).open_checkpoint(0), {"own": b"o", "file": b"w", "folder": None, "folder/bias": b"b"}
        )

    # --- several ------------------------------------------------------------------------------------------------------

    def test_the_order_is_that_of_the_commits(self, place: Path, tmp_path: Path) -> None:
        store = self.open_store(place)
        for step in (30, 4, 100):
            store.save([make_folder(tmp_path / f"{step}", {"step": b"%d" % step})], step)
        for found in (store, self.open_store(place)):
            assert found.list_steps() == [30, 4, 100]
        again = self.open_store(place)
        again.save([make_folder(tmp_path / "2", {"step": b"2"})], 2)
        assert self.open_store(place).list_steps() == [30, 4, 100, 2]
        assert [read_folder(again.open_checkpoint(step))["step"] for step in (4, 2)] == [b"4", b"2"]

    def test_those_beyond_num_to_keep_are_removed(self, place: Path, tmp_path: Path) -> None:
        store = self.open_store(place, num_to_keep=2)
        source = make_folder(tmp_path / "source", {"weights": b"w"})
        for step in range(5):
            store.save([source], step)
            assert store.list_steps() == list(range(max(0, step - 1), step + 1))
        assert self.open_store(place, num_to_keep=2).list_steps() == [3, 4]

    # --- interruptions ------------------------------------------------------------------------------------------------

    def test_a_save_that_is_killed_anywhere_is_whole_or_not_there(self, place: Path, tmp_path: Path) -> None:
        self._cut_short_everywhere(place, tmp_path, lambda: os.kill(os.getpid(), signal.SIGKILL))

    @pytest.mark.needs("errors")
    def test_a_save_that_fails_anywhere_is_whole_or_not_there(self, place: Path, tmp_path: Path) -> None:
        def fail() -> None:
            raise OSError(errno.EIO, "on purpose")

        self._cut_short_everywhere(place, tmp_path, fail)

    def test_one_is_left_wherever_a_save_that_replaces_it_is_killed(self, place: Path, tmp_path: Path) -> None:
        self._cut_short_everywhere(place, tmp_path, lambda: os.kill(os.getpid(), signal.SIGKILL), num_to_keep=1)

    def _cut_short_everywhere(
        self, place: Path, tmp_path: Path, fault: Callable[[], None], num_to_keep: int | None = None
    ) -> None:
        """Save at many places. Interrupt the n-th save at its n-th use of the file system."""
        files = {"weights": b"w" * 5_000, "empty": b"", "deep/er": b"d"}
        source = make_folder(tmp_path / "source", files)
        places = (place / str(number) for number in range(1, STEPS_AT_MOST))
        cut = 0
        for number, fresh in enumerate(places, 1):
            self.open_store(fresh, num_to_keep).save([source], 0)

            def save(number: int = number, fresh: Path = fresh) -> None:
                store = self.open_store(fresh, num_to_keep)
                count = cut_short([fresh, source], number, fault)
                store.save([source], 1)
                os._exit(_RETURNED if count() >= number else 0)

            ended = fork(save)
            found = self._reopen(fresh, num_to_keep)
            steps = found.list_steps()
            allowed = [[0], [0, 1]] if num_to_keep is None else [[0], [0, 1], [1]]
            assert steps in allowed, f"after use {number} of the file system, which ended in {ended}"
            if ended in (0, _RETURNED):
                assert steps == allowed[-1], "a save that returns has committed"
            for step in steps:
                check_folder(found.open_checkpoint(step), {**files, "deep": None})
            found.save([source], 2)
            expected = [*steps, 2] if num_to_keep is None else [2]
            assert self.open_store(fresh, num_to_keep).list_steps() == expected, (
                "an interrupted save does not block the next one"
            )
            if ended == 0:
                assert cut >= len(files), "a save uses the file system at least once for each file"
                return
            cut += steps == [0]
        pytest.fail(f"A save uses the file system more than {STEPS_AT_MOST} times.")

    # --- refusals -----------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        "kind", ["pipe", "socket", "link to a device", "link to nothing", "link to itself", "link to its folder"]
    )
    def test_what_is_no_file_is_refused_with_its_path(self, kind: str, place: Path, tmp_path: Path) -> None:
        source = make_folder(tmp_path / "source", {"weights": b"w", "inner/bias": b"b"})
        odd = source / "inner" / "odd"
        bound = None
        if kind == "pipe":
            os.mkfifo(odd)
        elif kind == "socket":
            bound = socket.socket(socket.AF_UNIX)
            bind_near(bound, odd)
        else:
            targets = {"link to a device": Path("/dev/zero"), "link to itself": odd, "link to its folder": source}
            odd.symlink_to(targets.get(kind, source / "nothing"))
        store = self.open_store(place)
        try:
            with pytest.raises(ValueError, match="Remove") as caught:
                store.save([source], 0)
        finally:
            if bound is not None:
                bound.close()
        assert "inner/odd" in str(caught.value), "the message names the path"
        assert self._reopen(place).list_steps() == []
        odd.unlink()
        self._reopen(place).save([source], 1)
        assert self.open_store(place).list_steps() == [1], "a refused save does not block the next one"

    def test_a_folder_that_is_gone_is_named(self, place: Path, tmp_path: Path) -> None:
        store = self.open_store(place)
        with pytest.raises(FileNotFoundError, match="gone"):
            store.save([tmp_path / "gone"], 0)
        assert self._reopen(place).list_steps() == []

    @pytest.mark.needs("damage")
    @pytest.mark.parametrize("how", ["cut", "flip", "remove"])
    def test_a_damaged_checkpoint_is_passed_over(self, how: str, place: Path, tmp_path: Path) -> None:
        source = make_folder(tmp_path / "source", {"weights": b"w" * 5_000, "bias": b"b"})
        store = self.open_store(place)
        for step in range(2):
            store.save([source], step)
        file = store.open_checkpoint(1) / "weights"
        if how == "remove":
            file.unlink()
        else:
            file.write_bytes(file.read_bytes()[:-1] + (b"x" if how == "flip" else b""))
        with pytest.warns(UserWarning, match="damaged"):
            found = self.open_store(place)
        assert found.list_steps() == [0]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found.save([source], 2)
            assert self.open_store(place).list_steps() == [0, 2]

    def _reopen(self, place: Path, num_to_keep: int | None = None) -> CheckpointStore:
        """Open a store after a save was refused or interrupted."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a store may warn of files that it does not use
            return self.open_store(place, num_to_keep)


# --- folders ---------------------------------------------------------------------------------------------------------


def build_files(kind: str) -> dict[str, bytes | None]:
    """Return the contents for a folder: bytes for files, None for folders."""
    if kind == "odd names":
        names = [
            "a b",
            ".hidden",
            "ünïcödé",
            "-rf",
            "a\nb",
            "*?[x]",
            "%20",
            "x" * 200,
            "inner folder/.keep",
            "a.tmp",
            NOT_UTF_8,
        ]
        return {name: os.fsencode(name) for name in names}
    if kind == "empty":
        return {"file": b"", "folder": None, "outer/inner": None}
    if kind == "many":
        return {f"{number % 7}/{number}": b"%d" % number for number in range(300)}
    if kind == "large":
        return {"large": os.urandom(9_000_001), "small": b"s"}
    return {"/".join(["deep"] * depth + ["file"]): b"%d" % depth for depth in range(1, 12)}


def make_folder(path: Path, files: dict[str, Any]) -> Path:
    """Make a folder with files, and return its path."""
    path.mkdir(parents=True)
    for name, data in files.items():
        if data is None:
            (path / name).mkdir(parents=True, exist_ok=True)
        else:
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(data)
    return path


def read_folder(path: Path) -> dict[str, bytes | None]:
    """Return a folder's contents: bytes for files, None for folders."""
    return {
        found.relative_to(path).as_posix(): None if found.is_dir() else found.read_bytes() for found in path.rglob("*")
    }


def check_folder(path: Path, expected: dict[str, Any]) -> None:
    """Fail if a folder's contents differ from the expected. A store may keep hidden files of its own there."""
    found = read_folder(path)
    assert {name: found.get(name, "missing") for name in expected} == expected
    more = [name for name in found.keys() - expected.keys() if not name.startswith(".")]
    assert more == []


def bind_near(bound: socket.socket, path: Path) -> None:
    """Bind a socket at a path that may be longer than the limit for sockets."""
    before = Path.cwd()
    os.chdir(path.parent)
    try:
        bound.bind(path.name)
    finally:
        os.chdir(before)


# --- processes that end early ----------------------------------------------------------------------------------------


def fork(function: Callable[[], None]) -> int:
    """Call a function in a forked process, and return its exit code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns of threads, which the new process does not have
        pid = os.fork()
    if pid == 0:
        code = _WRONG
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                function()
            code = _RETURNED
        except OSError:
            code = _RAISED
        except BaseException:  # noqa: BLE001 (it is printed, and the process ends)
            traceback.print_exc()
        finally:
            os._exit(code)
    ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert ended != _WRONG, "the other process failed; the printed output has its traceback"
    return ended


def cut_short(folders: Sequence[Path], number: int, fault: Callable[[], None]) -> Callable[[], int]:
    """Inject a fault at the n-th use of the file system below some folders; return a function that counts the uses.

    Python reports each use before it happens (PEP 578), for every caller. The hook cannot be removed, so this is for a
    process that ends soon.
    """
    below = tuple(str(folder) for folder in folders)
    count = 0

    def look(event: str, args: tuple[object, ...]) -> None:
        nonlocal count
        if not (event in ("open", "os.listdir", "os.scandir") or event.startswith(("os.r", "os.mk", "os.link"))):
            return
        if any(isinstance(arg, str | os.PathLike) and str(arg).startswith(below) for arg in args):
            count += 1
            if count == number:
                fault()

    sys.addaudithook(look)
    return lambda: count
