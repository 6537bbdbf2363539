"""Working folders among other users' files: nobody is removed through a link, nobody who lives, nobody else's."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import strangers

from hocket.stores import working_folders

shared_place = strangers.shared_place

pytestmark = pytest.mark.slow

PREFIX = "hocket-test-"

HOLDER = """
import sys
from hocket.stores import working_folders
folder = working_folders.WorkingFolder("hocket-test-", label=sys.argv[1])
open(folder.path + "/rows", "w").write("x")
print(folder.path, flush=True)
sys.stdin.read()
folder.remove()
"""

SWEEPER = """
import sys
from hocket.stores import working_folders
print(sorted(working_folders.sweep("hocket-test-").values()))
"""

NAMESPACE = ["unshare", "--pid", "--fork", "--mount-proc"]
HAS_NAMESPACES = (
    os.getuid() == 0 and subprocess.run([*NAMESPACE, "true"], check=False, capture_output=True).returncode == 0
)
needs_namespaces = pytest.mark.skipif(not HAS_NAMESPACES, reason="unshare(1) makes no PID namespace here")


def open_holder(label: str = "", *, command: tuple[str, ...] = ()) -> tuple[subprocess.Popen[str], Path]:
    """Start a process that holds a folder; return it, and the folder."""
    process = subprocess.Popen(
        [*command, sys.executable, "-c", HOLDER, label], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


@pytest.fixture
def holder(shared_place: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    process, path = open_holder("held")
    yield process, path
    process.kill()
    process.communicate()


def test_a_folder_is_private_and_of_a_random_name(shared_place: Path) -> None:
    names = set()
    for _ in range(3):
        folder = working_folders.WorkingFolder(PREFIX)
        found = os.lstat(folder.path)
        assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (os.geteuid(), 0o700)
        names.add(Path(folder.path).name)
        folder.remove()
        folder.remove()  # again is nothing
    assert len(names) == 3
    assert list(shared_place.iterdir()) == []


def test_what_a_killed_process_left_is_removed_and_what_lives_is_told(
    holder: tuple[subprocess.Popen[str], Path],
) -> None:
    process, path = holder
    assert working_folders.sweep(PREFIX) == {str(path): "held"}
    assert (path / "rows").exists()
    process.kill()
    process.wait()
    assert working_folders.sweep(PREFIX) == {}
    assert not path.exists()


def test_a_fork_does_not_remove_its_parents_folder(shared_place: Path) -> None:
    folder = working_folders.WorkingFolder(PREFIX)
    child = os.fork()
    if not child:
        folder.remove()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert Path(folder.path).is_dir()
    folder.remove()


@needs_namespaces
def test_a_living_process_of_another_container_keeps_its_folder(
    holder: tuple[subprocess.Popen[str], Path],
) -> None:
    found = subprocess.run([*NAMESPACE, sys.executable, "-c", SWEEPER], capture_output=True, text=True, check=True)
    assert found.stdout == "['held']\n"
    assert (holder[1] / "rows").exists()


@needs_namespaces
def test_what_a_killed_first_process_of_a_container_left_is_removed(shared_place: Path) -> None:
    process, path = open_holder(command=(*NAMESPACE, "--kill-child"))  # its pid is 1, and there is always one
    assert path.exists()
    process.kill()
    process.communicate()
    gone = threading.Event()
    for _ in range(1000):  # the kernel ends the namespace a moment later
        if not working_folders.sweep(PREFIX):
            break
        gone.wait(0.01)
    assert not path.exists()


@strangers.needs_root
def test_another_users_folders_stay_also_where_root_sweeps(shared_place: Path) -> None:
    def leave() -> None:
        for name in (f"{PREFIX}empty", f"{PREFIX}left"):
            (shared_place / name).mkdir()
        (shared_place / f"{PREFIX}left" / ".lock").touch()
        (shared_place / f"{PREFIX}left" / "rows").touch()

    strangers.run_as_other(leave)
    assert working_folders.sweep(PREFIX) == {}
    working_folders.remove(str(shared_place / f"{PREFIX}left"))
    assert sorted(path.name for path in shared_place.rglob("*")) == [".lock", f"{PREFIX}empty", f"{PREFIX}left", "rows"]


@strangers.needs_root
@pytest.mark.parametrize(
    "kind", ["link to a folder", "link to a folder with a lock", "link at the lock", "file", "pipe"]
)
def test_nothing_is_removed_through_what_a_stranger_left(shared_place: Path, kind: str) -> None:
    home = shared_place.parent / "home"
    (home / "thesis").mkdir(parents=True)
    (home / "thesis" / "data").write_text("precious")
    if "with a lock" in kind:
        (home / ".lock").touch()
    trap = shared_place / f"{PREFIX}trap"

    def lay() -> None:
        if kind.startswith("link to"):
            trap.symlink_to(home)
        elif kind == "file":
            trap.write_text("")
        elif kind == "pipe":
            os.mkfifo(trap)

    strangers.run_as_other(lay)
    if kind == "link at the lock":
        trap.mkdir(0o700)
        (trap / ".lock").symlink_to(home / "thesis" / "data")
    assert working_folders.sweep(PREFIX) == {}
    if kind.startswith("link to"):
        with pytest.raises(OSError, match=r"Not a directory|symbolic"):
            working_folders._open_own(trap)
        working_folders.remove(str(trap))
    assert (home / "thesis" / "data").read_text() == "precious"


def test_links_inside_are_removed_and_not_followed(shared_place: Path) -> None:
    home = shared_place.parent / "home"
    home.mkdir()
    (home / "data").write_text("precious")
    folder = working_folders.WorkingFolder(PREFIX)
    Path(folder.path, "link").symlink_to(home)
    Path(folder.path, "deep").mkdir()
    Path(folder.path, "deep", "link").symlink_to(home)
    folder.remove()
    assert not Path(folder.path).exists()
    assert (home / "data").read_text() == "precious"


@strangers.needs_root
@pytest.mark.parametrize("kind", ["open folder", "link", "own folder that is open"])
def test_a_folder_that_somebody_else_made_first_is_refused(shared_place: Path, kind: str) -> None:
    path = shared_place / f"{PREFIX}known"
    home = shared_place.parent / "home"
    home.mkdir(0o777)

    def squat() -> None:
        if kind == "link":
            path.symlink_to(home)
        else:
            path.mkdir()
            path.chmod(0o777)

    if kind.startswith("own"):
        squat()
    else:
        strangers.run_as_other(squat)
    with pytest.raises(
        PermissionError, match=r"a link, belongs to another user, or is open to other users.*Set TMPDIR"
    ):
        working_folders.join(str(path))
    assert list(home.iterdir()) == []


def test_processes_of_one_user_share_a_folder(shared_place: Path) -> None:
    path = str(shared_place / f"{PREFIX}known")
    first, second = working_folders.join(path), working_folders.join(path)
    assert set(working_folders.sweep(PREFIX)) == {path}
    os.close(first)
    assert set(working_folders.sweep(PREFIX)) == {path}
    os.close(second)
    assert working_folders.sweep(PREFIX) == {}


def test_one_of_many_has_a_label(shared_place: Path) -> None:
    """Threads claim one label at the same moment, again and again: never do two have it."""
    having, most = [0], [0]
    lock = threading.Lock()
    barrier = threading.Barrier(4)
    won = []

    def claim() -> None:
        for _ in range(10):
            barrier.wait()
            folder = working_folders.claim(PREFIX, "the run")
            if folder is None:
                continue
            with lock:
                having[0] += 1
                most[0] = max(most[0], having[0])
                won.append(folder.path)
            with lock:
                having[0] -= 1
            folder.remove()

    threads = [threading.Thread(target=claim) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]
    assert won
    assert list(shared_place.iterdir()) == []


def test_a_label_is_free_when_its_process_was_killed(holder: tuple[subprocess.Popen[str], Path]) -> None:
    assert working_folders.claim(PREFIX, "held") is None
    other = working_folders.claim(PREFIX, "another")
    assert other is not None
    other.remove()
    holder[0].kill()
    holder[0].wait()
    folder = working_folders.claim(PREFIX, "held")
    assert folder is not None
    folder.remove()


def test_makers_and_sweepers_do_not_hurt_each_other(shared_place: Path) -> None:
    """Whoever has a folder has it until he lets go, whatever others sweep meanwhile."""
    is_over = threading.Event()

    def sweep() -> None:
        while not is_over.is_set():
            working_folders.sweep(PREFIX)

    sweepers = [threading.Thread(target=sweep) for _ in range(2)]
    for thread in sweepers:
        thread.start()
    try:
        for number in range(200):
            folder = working_folders.WorkingFolder(PREFIX)
            Path(folder.path, "rows").write_text(str(number))
            assert Path(folder.path, "rows").read_text() == str(number)
            folder.remove()
    finally:
        is_over.set()
        for thread in sweepers:
            thread.join()
    assert list(shared_place.iterdir()) == []
