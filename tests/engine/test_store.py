"""The object store: its limit, its files, its errors, and what it leaves behind."""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import hocket
from hocket.engine import node
from hocket.engine.local import driver_store, segments, spill, store
from hocket.testing import Leftovers
from tests.conftest import RunScript

MIB = 1 << 20
LIMIT = 80 * MIB


def make(number: int, mebibytes: int = 20) -> Any:
    return np.full(mebibytes * MIB, number, np.uint8)


def is_right(array: Any, number: int, mebibytes: int = 20) -> bool:
    return bool(array.nbytes == mebibytes * MIB and (array == number).all())


def get_store() -> driver_store.DriverStore:
    found = hocket.core.session.get_engine().store  # type: ignore[attr-defined]
    assert isinstance(found, driver_store.DriverStore)
    return found


def look(*names: str) -> Any:
    """Return figures of `statistics`."""
    statistics = hocket.core.session.get_engine().view.statistics()
    found = tuple(statistics[name] for name in names)
    return found[0] if len(found) == 1 else found


def count_functions() -> int:
    engine: Any = hocket.core.session.get_engine()
    return len(engine.kernel.functions)


def is_spilled(ref: Any) -> bool:
    return get_store().entries[ref._id].is_file


@pytest.fixture
def small_session(tmp_path: Path) -> Iterator[hocket.SessionContext]:
    """A session whose memory holds four arrays of 20 MiB, and that leaves nothing behind."""
    before = Leftovers.look()
    with hocket.init(
        num_cpus=2, object_store_memory=LIMIT, object_spilling_directory=str(tmp_path / "spill")
    ) as context:
        yield context
    assert before.list_new() == []


# --- the limit --------------------------------------------------------------------------------------------------------


def test_limit_is_a_share_of_the_memory_unless_given() -> None:
    with hocket.init(num_cpus=1):
        assert look("limit_bytes") == max(75 * MIB, int(node.count_memory() * 0.3))
    with hocket.init(num_cpus=1, object_store_memory=75 * MIB):
        assert look("limit_bytes") == 75 * MIB


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        (75 * MIB - 1, ValueError, r"at least 78,643,200 bytes \(75 MiB\), but received 78643199"),
        (-1, ValueError, "at least 78,643,200 bytes"),
        (float("nan"), ValueError, "at least 78,643,200 bytes"),
        ("2 GB", TypeError, r"must be a number of bytes, but received '2 GB' \(str\)"),
        (True, TypeError, "must be a number of bytes, but received True"),
    ],
)
def test_wrong_limit_is_refused(given: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        hocket.init(object_store_memory=given)
    assert not hocket.is_initialized()


@pytest.mark.parametrize("name", ["object_spilling_directory", "_temp_dir"])
def test_wrong_folder_is_refused(name: str, tmp_path: Path) -> None:
    given: dict[str, Any] = {name: "spill"}
    with pytest.raises(ValueError, match=rf"{name} must be an absolute path, but received 'spill'"):
        hocket.init(**given)
    given = {name: str(tmp_path / "file")}
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=rf"{name} must be a folder, but .*file' is not"):
        hocket.init(**given)


def test_memory_of_both_versions_of_cgroups_is_found(tmp_path: Path) -> None:
    groups = tmp_path / "cgroup"
    groups.write_text("4:memory:/a/b\n3:cpu,cpuacct:/x\n0::/c/d\n")
    for path, text in {
        "memory/memory.limit_in_bytes": "9223372036854771712",
        "memory/a/memory.limit_in_bytes": "5000",
        "memory/a/b/memory.limit_in_bytes": "6000",
        "c/memory.max": "max",
        "c/d/memory.max": "7000",
        "cpu/x/memory.max": "1",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text + "\n")
    assert sorted(node._list_memory_limits(groups, tmp_path)) == [5000, 6000, 7000, 9223372036854771712]
    assert node._list_memory_limits(tmp_path / "none", tmp_path) == []


def test_memory_in_a_container_that_sees_the_path_of_its_host(tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text("0::/../host/path\n")
    (tmp_path / "memory.max").write_text("4000\n")
    assert node._list_memory_limits(tmp_path / "cgroup", tmp_path) == [4000]


# --- what goes to disk ------------------------------------------------------------------------------------------------


def test_least_recently_used_goes_first_and_comes_back(small_session: hocket.SessionContext, tmp_path: Path) -> None:
    refs = [hocket.put(make(number)) for number in range(4)]
    assert look("shared_bytes", "spilled_bytes") == (LIMIT, 0)
    assert is_right(hocket.get(refs[0]), 0)  # used more recently than the second now
    refs.append(hocket.put(make(4)))
    assert [is_spilled(ref) for ref in refs] == [False, True, False, False, False]
    refs.append(hocket.put(make(5)))
    assert [is_spilled(ref) for ref in refs] == [False, True, True, False, False, False]
    assert look("shared_bytes", "spilled_bytes") == (LIMIT, 40 * MIB)
    assert list((tmp_path / "spill").iterdir()) == [], "spill files have no name"
    assert all(is_right(hocket.get(ref), number) for number, ref in enumerate(refs))
    del refs
    gc.collect()
    assert look("shared_bytes", "spilled_bytes", "objects") == (0, 0, 0)


def test_what_is_mapped_stays(small_session: hocket.SessionContext) -> None:
    refs = [hocket.put(make(number)) for number in range(4)]
    array = hocket.get(refs[0])
    for ref in refs[1:]:
        hocket.get(ref)
    refs.append(hocket.put(make(4)))
    assert [is_spilled(ref) for ref in refs] == [False, True, False, False, False], "the first is older, but mapped"
    assert is_right(array, 0)
    del array
    refs.append(hocket.put(make(5)))
    assert [is_spilled(ref) for ref in refs] == [False, True, True, False, False, False], "the first was used last"
    refs += [hocket.put(make(number)) for number in range(6, 9)]
    assert is_spilled(refs[0])
    assert is_right(hocket.get(refs[0]), 0)


def test_what_a_worker_maps_stays_until_the_worker_is_gone(small_session: hocket.SessionContext) -> None:
    class Keeper:
        def keep(self, array: Any) -> int:
            self.array = array
            return os.getpid()

        def is_right(self) -> bool:
            return is_right(self.array, 0)

    keeper = hocket.remote(Keeper).remote()
    refs = [hocket.put(make(number)) for number in range(4)]
    pid = hocket.get(keeper.keep.remote(refs[0]))
    for ref in refs[1:]:
        hocket.get(ref)
    refs.append(hocket.put(make(4)))
    assert [is_spilled(ref) for ref in refs] == [False, True, False, False, False]
    assert hocket.get(keeper.is_right.remote())
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(hocket.exceptions.ActorDiedError, match="SIGKILL"):
        hocket.get(keeper.is_right.remote())
    refs += [hocket.put(make(number)) for number in range(5, 9)]
    assert is_spilled(refs[0])


def test_if_all_is_mapped_the_new_value_goes_to_disk(small_session: hocket.SessionContext) -> None:
    refs = [hocket.put(make(number)) for number in range(4)]
    arrays = hocket.get(refs)
    refs.append(hocket.put(make(4)))
    assert [is_spilled(ref) for ref in refs] == [False, False, False, False, True]
    assert is_right(hocket.get(refs[4]), 4)
    assert all(is_right(array, number) for number, array in enumerate(arrays))


def test_value_larger_than_the_limit_goes_to_disk_alone(small_session: hocket.SessionContext) -> None:
    small = hocket.put(make(1))
    large = hocket.put(make(2, 100))
    assert (is_spilled(small), is_spilled(large)) == (False, True)
    assert is_right(hocket.get(large), 2, 100)

    @hocket.remote
    def double(array: Any) -> Any:
        return array * 2

    assert is_right(hocket.get(double.remote(large)), 4, 100)
    assert look("shared_bytes") == 20 * MIB


def test_warm_memory_is_given_back_before_anything_goes_to_disk(small_session: hocket.SessionContext) -> None:
    kept = hocket.put(make(0))
    del_me = [hocket.put(make(number, 30)) for number in range(2)]
    del del_me
    refs = [hocket.put(make(number, 15)) for number in range(4)]
    assert look("spilled_bytes") == 0
    assert look("shared_bytes") == LIMIT
    assert is_right(hocket.get(kept), 0)
    assert all(is_right(hocket.get(ref), number, 15) for number, ref in enumerate(refs))


def test_what_workers_make_is_bounded_too(small_session: hocket.SessionContext) -> None:
    @hocket.remote
    def build(number: int) -> Any:
        return make(number)

    refs = [build.remote(number) for number in range(12)]
    hocket.wait(refs, num_returns=12)
    shared, warm, spilled = look("shared_bytes", "warm_bytes", "spilled_bytes")
    assert shared + warm <= LIMIT
    assert spilled >= 12 * 20 * MIB - LIMIT
    assert all(is_right(hocket.get(ref), number) for number, ref in enumerate(refs))
    pids = [os.getpid(), *look("worker_pids")]
    deadline = time.monotonic() + 5
    while count_memfd_bytes(pids) > LIMIT and time.monotonic() < deadline:
        time.sleep(0.01)  # a worker gives back what it was told to a moment later
    assert count_memfd_bytes(pids) <= LIMIT, "what the system says that all processes hold"


def count_memfd_bytes(pids: list[int]) -> int:
    """Return the size of all segments that the processes have descriptors of."""
    sizes: dict[int, int] = {}
    for pid in pids:
        for path in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                if str(path.readlink()).startswith("/memfd:hocket ("):
                    found = path.stat()
                    sizes[found.st_ino] = found.st_size
    return sum(sizes.values())


def test_worker_that_puts_and_passes_arguments_is_bounded(small_session: hocket.SessionContext) -> None:
    @hocket.remote
    def measure(array: Any) -> int:
        return int(array.nbytes)

    @hocket.remote
    def work() -> tuple[list[Any], int]:
        refs = [hocket.put(make(number)) for number in range(6)]
        total = sum(hocket.get([measure.remote(make(number)) for number in range(4)]))
        assert all(is_right(hocket.get(ref), number) for number, ref in enumerate(refs))
        return refs, total

    refs, total = hocket.get(work.remote())
    assert total == 4 * 20 * MIB
    shared, warm = look("shared_bytes", "warm_bytes")
    assert shared + warm <= LIMIT
    assert all(is_right(hocket.get(ref), number) for number, ref in enumerate(refs))


def test_spilled_object_outlives_the_worker_that_made_it(small_session: hocket.SessionContext) -> None:
    class Maker:
        def make(self) -> list[Any]:
            return [hocket.put(make(number)) for number in range(6)]

    maker = hocket.remote(Maker).remote()
    refs = hocket.get(maker.make.remote())
    hocket.kill(maker)
    assert any(is_spilled(ref) for ref in refs)
    assert all(is_right(hocket.get(ref), number) for number, ref in enumerate(refs))
    more = [hocket.put(make(number)) for number in range(4)]
    assert all(is_spilled(ref) for ref in refs)
    assert all(is_right(hocket.get(ref), number) for number, ref in enumerate(refs + more[:0]))


def test_items_that_a_generator_makes_twice_are_kept_once(session: hocket.SessionContext) -> None:
    class Counter:
        def __init__(self) -> None:
            self.count = 0

        def add(self) -> int:
            self.count += 1
            return self.count

    counter = hocket.remote(Counter).remote()

    @hocket.remote(num_returns="streaming", max_retries=1)
    def build(counter: Any) -> Iterator[Any]:
        attempt = hocket.get(counter.add.remote())
        for number in range(3):
            if attempt == 1 and number == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            yield make(number, 1)

    refs = list(build.remote(counter))
    assert [is_right(hocket.get(ref), number, 1) for number, ref in enumerate(refs)] == [True, True, True]
    assert look("shared_bytes") == 3 * MIB
    refs.clear()
    gc.collect()
    assert look("shared_bytes") == 0


@pytest.mark.parametrize("mebibytes", [0.1, 20, 100])
def test_one_reader_does_not_see_what_another_writes(small_session: hocket.SessionContext, mebibytes: float) -> None:
    """In a message, in memory and on disk."""
    source = np.zeros(int(mebibytes * MIB), np.uint8)
    ref = hocket.put(source)
    source[:] = 9

    @hocket.remote
    def write(array: Any) -> int:
        array += 1
        return int(array.sum())

    first, second = hocket.get(ref), hocket.get(ref)
    first[:] = 7
    assert hocket.get([write.remote(ref), write.remote(ref)]) == [first.nbytes, first.nbytes]
    assert (first.max(), second.max(), hocket.get(ref).max()) == (7, 0, 0)


@pytest.mark.slow
def test_random_use_over_the_limit(small_session: hocket.SessionContext) -> None:  # noqa: C901 (a table of what may be done)
    seed = random.randrange(10**6)

    @hocket.remote
    def add(array: Any, number: int) -> Any:
        return array + number

    @hocket.remote
    def put(number: int, mebibytes: int) -> list[Any]:
        return [hocket.put(make(number, mebibytes))]

    def run(chance: random.Random, failures: list[str]) -> None:
        held: list[tuple[Any, int, int]] = []
        arrays: list[tuple[Any, int, int]] = []
        for step in range(60):
            number, mebibytes = chance.randrange(100), chance.choice([1, 5, 20, 33])
            match chance.randrange(7):
                case 0 | 1:
                    held.append((hocket.put(make(number, mebibytes)), number, mebibytes))
                case 2 if held:
                    ref, before, mebibytes = chance.choice(held)
                    held.append((add.remote(ref, 3), before + 3, mebibytes))
                case 3:
                    held.append((hocket.get(put.remote(number, mebibytes))[0], number, mebibytes))
                case 4 if held:
                    ref, number, mebibytes = chance.choice(held)
                    arrays.append((hocket.get(ref), number, mebibytes))
                case 5 if held:
                    held.pop(chance.randrange(len(held)))
                case 6 if arrays:
                    array, number, mebibytes = arrays.pop(chance.randrange(len(arrays)))
                    if not is_right(array, number, mebibytes):
                        failures.append(f"step {step}: a mapped array changed")
        failures += [f"{number}" for ref, number, size in held if not is_right(hocket.get(ref), number, size)]

    failures: list[str] = []
    threads = [threading.Thread(target=run, args=(random.Random(seed + n), failures)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == [], f"seed {seed}"
    gc.collect()
    assert look("shared_bytes", "spilled_bytes") == (0, 0), f"seed {seed}"
    assert look("warm_bytes") <= LIMIT


def test_asynchronous_and_threaded_actors_are_bounded_too(small_session: hocket.SessionContext) -> None:
    class Maker:
        async def make(self, number: int) -> Any:
            return make(number)

        @hocket.method(concurrency_group="other")
        async def make_elsewhere(self, number: int) -> Any:
            return [hocket.put(make(number))]

    class Threaded:
        def make(self, number: int) -> Any:
            return make(number)

    maker = hocket.remote(concurrency_groups={"other": 2})(Maker).remote()
    threaded = hocket.remote(Threaded).options(max_concurrency=4).remote()
    refs = [maker.make.remote(number) for number in range(6)]
    refs += [threaded.make.remote(number) for number in range(6)]
    lists = hocket.get([maker.make_elsewhere.remote(number) for number in range(6)], timeout=30)
    refs += [ref for inner in lists for ref in inner]
    hocket.wait(refs, num_returns=18, timeout=30)
    shared, warm = look("shared_bytes", "warm_bytes")
    assert shared + warm <= LIMIT
    assert all(is_right(hocket.get(ref), number % 6) for number, ref in enumerate(refs))


def test_memory_of_a_dead_worker_is_not_counted(small_session: hocket.SessionContext) -> None:
    class Maker:
        def make(self) -> int:
            for number in range(3):
                hocket.put(make(number))
            return os.getpid()

        def wait(self) -> None:
            time.sleep(1000)

    maker = hocket.remote(Maker).remote()
    pid = hocket.get(maker.make.remote())
    assert look("warm_bytes") >= 20 * MIB
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(hocket.exceptions.ActorDiedError, match="SIGKILL"):
        hocket.get(maker.wait.remote())
    assert look("shared_bytes", "warm_bytes") == (0, 0)
    refs = [hocket.put(make(number)) for number in range(4)]
    assert look("spilled_bytes") == 0
    assert all(is_right(hocket.get(ref), number) for number, ref in enumerate(refs))


@pytest.mark.slow
def test_interrupted_puts_leave_the_account_right(small_session: hocket.SessionContext) -> None:
    seed = random.randrange(10**6)
    chance = random.Random(seed)
    main_id = threading.main_thread().ident
    build = hocket.remote(make)
    refs: list[Any] = []
    interrupted = 0
    for _ in range(10):
        timer = threading.Timer(chance.random() * 0.1, signal.pthread_kill, (main_id, signal.SIGINT))
        try:
            timer.start()
            while True:  # ended by the interrupt alone
                refs.append(hocket.put(make(3, 30)))
                refs.append(build.remote(3, 20))
                hocket.wait(refs[-1:])
                del refs[:-6]
        except KeyboardInterrupt:
            interrupted += 1
        timer.join()
    assert interrupted == 10
    assert all(set(np.unique(hocket.get(ref))) == {3} for ref in refs), f"seed {seed}"
    refs.clear()
    gc.collect()
    assert look("shared_bytes", "spilled_bytes", "objects") == (0, 0, 0), f"seed {seed}"
    pool = get_store().pool
    held = sum(segment.capacity for segment in pool.used.values() if not segment.is_file)
    assert pool.count_bytes() == held + pool.free_bytes, f"seed {seed}"


# --- what is left -----------------------------------------------------------------------------------------------------

SPILLING_DRIVER = """
import sys, time
import numpy as np
import hocket

hocket.init(num_cpus=2, object_store_memory=80 << 20, object_spilling_directory={folder!r})

@hocket.remote
def build(number):
    return np.full(20 << 20, number, np.uint8)

refs = [hocket.put(np.zeros(20 << 20, np.uint8)) for _ in range(5)] + [build.remote(number) for number in range(5)]
hocket.wait(refs, num_returns=10)
print(hocket.core.session.get_engine().view.statistics()["spilled_bytes"], flush=True)
time.sleep(1000)
"""


def list_unnamed_files(folder: Path) -> list[str]:
    """Return the descriptors, of all processes, of files without a name in a folder."""
    found = []
    for process in psutil.process_iter():
        try:
            for path in Path(f"/proc/{process.pid}/fd").iterdir():
                target = str(path.readlink())
                if target.startswith(str(folder)):
                    found.append(f"{process.pid}: {target}")
        except OSError:
            continue
    return found


@pytest.mark.slow
@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_killed_driver_leaves_no_file(start_script: RunScript, tmp_path: Path, signal_number: int) -> None:
    driver = start_script(SPILLING_DRIVER.format(folder=str(tmp_path)))
    assert driver.stdout is not None
    assert int(driver.stdout.readline()) >= 100 * MIB
    assert list_unnamed_files(tmp_path) != []
    children = psutil.Process(driver.pid).children(recursive=True)
    driver.send_signal(signal_number)
    driver.wait()
    gone, _ = psutil.wait_procs(children, timeout=5)
    assert len(gone) == len(children)
    assert list_unnamed_files(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_file_system_without_unnamed_files_is_used_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "O_TMPFILE", os.O_DIRECTORY | os.O_CREAT)  # refused by every system
    fd = spill.open_file(str(tmp_path))
    try:
        os.write(fd, b"text")
        reader = spill.reopen_read_only(fd)
        assert os.read(reader, 10) == b"text"
        os.close(reader)
        assert list(tmp_path.iterdir()) == []
    finally:
        os.close(fd)


def test_leftovers_notice_spill_files(tmp_path: Path) -> None:
    before = Leftovers.look()
    fd = spill.open_file(str(tmp_path))
    found = before._compare(Leftovers.look())
    os.close(fd)
    assert len(found) == 1
    assert str(tmp_path) in found[0]


# --- the machine is full ----------------------------------------------------------------------------------------------

Namespace = Callable[[str, str, int], "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run_with_tmpfs() -> Namespace:
    """Run a script with a tmpfs of so many MiB mounted on a folder, seen by the script alone."""
    if subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True).returncode:
        pytest.skip("mount namespaces need privileges that this user does not have")

    def run(source: str, folder: str, mebibytes: int) -> subprocess.CompletedProcess[str]:
        mount = f'mount -t tmpfs -o size={mebibytes}m tmpfs "$1" && exec "$2" -c "$3"'
        command = ["unshare", "--mount", "sh", "-c", mount, "sh", folder, sys.executable, source]
        return subprocess.run(command, check=False, capture_output=True, text=True, timeout=50)

    return run


FULL_DISK = """
import gc
import numpy as np
import hocket

hocket.init(num_cpus=1, object_store_memory=80 << 20, object_spilling_directory={folder!r})

def fill():
    kept = []
    try:
        while True:
            kept.append(hocket.put(np.zeros(20 << 20, np.uint8)))
    except hocket.exceptions.OutOfDiskError as error:
        return kept, error

@hocket.remote
def return_much():
    return np.zeros(20 << 20, np.uint8)

@hocket.remote
def put_much():
    return [hocket.put(np.zeros(20 << 20, np.uint8))]

@hocket.remote
def call():
    return 42

small = [hocket.put(np.zeros(1 << 20, np.uint8)) for _ in range(2)]
kept, error = fill()
print(len(kept))
print(error)
for function in (return_much, put_much):
    try:
        hocket.get(function.remote())
    except hocket.exceptions.ObjectStoreFullError as worker_error:
        print(type(worker_error).__name__, str(worker_error).count("No room for an object of 20,971,520 bytes"))
print(hocket.get(call.remote()))
del kept, error
gc.collect()
print(len(fill()[0]))
"""


@pytest.mark.slow
def test_full_disk_is_explained_and_the_session_goes_on(run_with_tmpfs: Namespace, tmp_path: Path) -> None:
    done = run_with_tmpfs(FULL_DISK.format(folder=str(tmp_path)), str(tmp_path), 50)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    count = int(lines[0])
    assert count == 6, "memory holds four of 20 MiB, and the disk two and the two small ones"
    full = rf"No room for an object of 20,971,520 bytes: [\d,]+ of 83,886,080 bytes of memory are free, .*{tmp_path} cannot hold the object"
    assert re.match(full, lines[1]), lines[1]
    assert "No space left on device" in lines[1]
    assert lines[3] == f"  <string>:12: {count * 20 * MIB:,} bytes in {count} objects"
    assert lines[4] == f"  <string>:28: {2 * MIB:,} bytes in 2 objects"
    assert "dropping references" in lines[5]
    assert "object_store_memory=" in lines[5]
    assert lines[6:8] == [
        "OutOfDiskError 1",
        "TaskError(OutOfDiskError) 1",
    ]  # the second came through the task's own code
    assert lines[8:] == ["42", str(count)]


def test_folder_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with hocket.init(num_cpus=1, object_store_memory=80 * MIB, object_spilling_directory=str(tmp_path / "spill")):
        (tmp_path / "spill").touch()  # a file where the folder should be made
        with pytest.raises(hocket.exceptions.OutOfDiskError, match=r"spill cannot hold the object \(File exists"):
            hocket.put(make(0, 100))


CONTAINER = """
import numpy as np
import hocket

hocket.init(num_cpus=2)
array = np.arange(1 << 27)

@hocket.remote
def total(array):
    return int(array.sum()), array[::-1].copy()

ref = hocket.put(array)
found, turned = hocket.get(total.remote(ref))
print(array.nbytes, found == int(array.sum()), bool((hocket.get(ref) == array).all()), int(turned[0]))
"""


@pytest.mark.slow
def test_container_with_64_mb_of_dev_shm_holds_large_values(run_with_tmpfs: Namespace) -> None:
    done = run_with_tmpfs(CONTAINER, "/dev/shm", 64)
    assert (done.stdout.split(), done.stderr) == ([str(1 << 30), "True", "True", str((1 << 27) - 1)], "")


# --- who holds what ---------------------------------------------------------------------------------------------------


def test_holders_are_named_by_source_line(session: hocket.SessionContext) -> None:
    refs = [hocket.put(make(number, 2)) for number in range(3)]
    line = sys._getframe().f_lineno - 1

    def build() -> Any:
        return make(0, 1)

    first = build.__code__.co_firstlineno
    refs.append(hocket.remote(build).remote())
    hocket.wait(refs[3:])
    assert look("holders") == [
        (f"{__file__}:{line}", 6 * MIB, 3),
        (f"{__file__}:{first} (returned by `build`)", MIB, 1),
    ]


def test_holder_of_a_large_argument_is_the_line_of_the_call(session: hocket.SessionContext) -> None:
    @hocket.remote
    def look_from_inside(array: Any) -> Any:
        return hocket.core.session.get_engine().view.statistics()["holders"]

    holders = hocket.get(look_from_inside.remote(make(0, 1)))
    assert holders == [(f"{__file__}:{sys._getframe().f_lineno - 1}", MIB, 1)]


# --- digests ----------------------------------------------------------------------------------------------------------


def test_damaged_memory_is_found_in_debug_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_DEBUG", "1")

    @hocket.remote
    def measure(array: Any) -> int:
        return len(array)

    with hocket.init(num_cpus=1):
        good, bad = hocket.put(make(1, 1)), hocket.put(make(2, 1))
        os.pwrite(get_store().entries[bad._id].fd, b"\xff", 12345)
        assert is_right(hocket.get(good), 1, 1)
        assert hocket.get(measure.remote(good)) == MIB
        with pytest.raises(hocket.exceptions.ObjectLostError, match=rf"{bad.hex()}.*test_store.py.*not hold what was"):
            hocket.get(bad)
        with pytest.raises(hocket.exceptions.ObjectLostError, match=rf"{bad.hex()}.*test_store.py.*not hold what was"):
            hocket.get(measure.remote(bad))


def test_damaged_result_of_a_worker_is_found_in_debug_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_DEBUG", "1")

    @hocket.remote
    def build() -> Any:
        return make(1, 1)

    with hocket.init(num_cpus=1):
        ref = build.remote()
        hocket.wait([ref])
        os.pwrite(get_store().entries[ref._id].fd, b"\xff", 0)
        with pytest.raises(hocket.exceptions.ObjectLostError, match="does not hold what was stored"):
            hocket.get(ref)


# --- functions that take arrays along ---------------------------------------------------------------------------------


def count_mappings(array: Any) -> int:
    """Return how many segments this process maps that are as large as the array."""
    count = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        low, high = (int(part, 16) for part in line.split()[0].split("-"))
        count += "/memfd:hocket " in line and high - low >= array.nbytes
    return count


def test_array_of_a_closure_is_stored_once(session: hocket.SessionContext, caplog: pytest.LogCaptureFixture) -> None:
    weights = make(3)

    @hocket.remote
    def use(number: int) -> tuple[int, int, int]:
        weights[0] = number  # each worker has a copy of its own, of what it writes to
        return int(weights[1]) + number, count_mappings(weights), os.getpid()

    with caplog.at_level(logging.INFO, "hocket"):
        first = hocket.get(use.remote(0))
        before = look("shared_bytes"), len(get_store().entries), look("warm_bytes")
        found = hocket.get([use.remote(number) for number in range(100)])
    assert [value for value, _, _ in found] == [3 + number for number in range(100)]
    assert first[0] == 3
    assert {mappings for _, mappings, _ in found} == {1}
    assert (look("shared_bytes"), len(get_store().entries), look("warm_bytes")) == before
    assert before[0] == 20 * MIB
    assert weights[0] == 3
    messages = [record.getMessage() for record in caplog.records if record.name == "hocket"]
    assert len(messages) == 1
    assert "remote function `use` refers to closure variable 'weights': 20,971,520 bytes" in messages[0]


def test_arrays_of_classes_defaults_and_small_closures_travel(session: hocket.SessionContext) -> None:
    small = np.arange(10_000)
    default = make(5, 1)

    class Holder:
        table = make(4, 1)

        def add(self, other: Any = default) -> int:
            return int(self.table[0]) + int(other[0]) + int(small[-1])

    assert hocket.get(hocket.remote(Holder).remote().add.remote()) == 9 + 9999
    assert look("shared_bytes") >= 2 * MIB


def test_equal_code_with_other_arrays_is_another_function(session: hocket.SessionContext) -> None:
    def build(number: int) -> Any:
        array = make(number, 1)
        return hocket.remote(lambda: int(array[-1]))

    functions = [build(number) for number in (1, 2, 1)]
    assert hocket.get([function.remote() for function in functions]) == [1, 2, 1]
    assert count_functions() == 2


def test_array_of_a_closure_travels_from_a_worker_too(session: hocket.SessionContext) -> None:
    class Outer:
        def __init__(self) -> None:
            self.kept: list[Any] = []  # a function that nobody holds is forgotten

        def run(self, number: int) -> int:
            array = make(number, 1)
            inner = hocket.remote(lambda: int(array[-1]))
            self.kept.append(inner)
            return sum(hocket.get([inner.remote() for _ in range(3)]))

    outers = [hocket.remote(Outer).remote() for _ in range(2)]
    assert hocket.get([outers[0].run.remote(1), outers[1].run.remote(1), outers[1].run.remote(2)]) == [3, 3, 6]
    assert count_functions() == 3, "and Outer itself"


def test_array_of_a_closure_in_process() -> None:
    array = make(6, 1)

    def use() -> int:
        array[0] += 1
        return int(array[0])

    with hocket.init(num_cpus=1, engine="inprocess", object_store_memory=100 * MIB):
        remote = hocket.remote(use)
        assert hocket.get([remote.remote(), remote.remote()]) == [7, 7]
    assert array[0] == 6


def test_function_with_a_large_pickle_warns(session: hocket.SessionContext) -> None:
    text = "x" * (11 * MIB)
    remote = hocket.remote(lambda: len(text))
    with pytest.warns(
        UserWarning, match=r"very large \(11,5\d\d,\d{3} bytes .*closure variable 'text'.*hocket.put"
    ) as caught:
        ref = remote.remote()
    assert caught[0].filename == __file__
    assert hocket.get(ref) == 11 * MIB


def test_function_with_a_huge_pickle_is_refused(session: hocket.SessionContext) -> None:
    text = "x" * (101 * MIB)
    with pytest.raises(ValueError, match=r"too large: 105,9.*the limit is 104,857,600.*'text'.*hocket.put"):
        hocket.remote(lambda: len(text)).remote()


def test_actor_class_with_a_large_pickle_names_what_is_large(session: hocket.SessionContext) -> None:
    class Keeper:
        text = "x" * (11 * MIB)

        def count(self) -> int:
            return len(self.text)

    with pytest.warns(UserWarning, match=r"very large .*Most of it is in class attribute 'text'\. Put large data"):
        keeper = hocket.remote(Keeper).remote()
    assert hocket.get(keeper.count.remote()) == 11 * MIB


# --- large pickles ----------------------------------------------------------------------------------------------------


def test_large_pickles_are_bounded_and_spilled_too(small_session: hocket.SessionContext) -> None:
    @hocket.remote
    def build(number: int) -> bytes:
        return bytes([number]) * (20 * MIB)

    refs = [hocket.put("a" * (20 * MIB)) for _ in range(3)] + [build.remote(number) for number in range(5)]
    hocket.wait(refs, num_returns=8)
    shared, warm, spilled = look("shared_bytes", "warm_bytes", "spilled_bytes")
    assert shared + warm <= LIMIT
    assert spilled >= 8 * 20 * MIB - LIMIT
    assert [hocket.get(ref) == "a" * (20 * MIB) for ref in refs[:3]] == [True] * 3
    assert [hocket.get(ref) == bytes([number]) * (20 * MIB) for number, ref in enumerate(refs[3:])] == [True] * 5
    del refs
    gc.collect()
    assert look("shared_bytes", "spilled_bytes", "objects") == (0, 0, 0)


@pytest.mark.timeout(280)
@pytest.mark.long
@pytest.mark.skipif(psutil.virtual_memory().available < 16 * 2**30, reason="It takes 12 GiB of memory.")
def test_values_above_two_gibibytes(session: hocket.SessionContext) -> None:
    size = 2_200_000_000

    @hocket.remote
    def count(*values: Any) -> int:
        return sum(map(len, values))

    @hocket.remote
    def build(kind: str) -> Any:
        return {
            "bytes": bytes,
            "str": lambda size: "x" * size,
            "bytearray": bytearray,
            "list": lambda size: [bytes(size)],
        }[kind](size)

    for kind in ("bytes", "str", "bytearray", "list"):
        ref = build.remote(kind)
        length = 1 if kind == "list" else size
        assert hocket.get(count.remote(ref)) == length
        assert hocket.get(count.remote(hocket.get(ref))) == length
        del ref
    assert hocket.get(count.remote(*[bytes(100_000_000) for _ in range(23)])) == 2_300_000_000
    assert look("objects") == 0
    assert hocket.get(count.remote(b"small")) == 5


# --- pieces -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 63, 64, 4097, segments.PARALLEL_BYTES - 1, segments.PARALLEL_BYTES + 4097])
def test_segment_holds_what_was_written_cold_and_warm(size: int) -> None:
    chance = np.random.default_rng(size)
    pieces = [chance.integers(0, 256, length, np.uint8) for length in (size, 100)]
    buffers = [memoryview(piece.data) for piece in pieces]
    total, layout = segments.plan_layout(buffers)
    segment = segments.SegmentPool().take_new(segments.choose_capacity(total))
    try:
        for _ in range(3):
            segment.write(buffers, layout)
            unmapped: list[int] = []
            found = segments.map_private(segment.fd, total, layout, functools.partial(unmapped.append, 1))
            for piece, part in zip(pieces, found, strict=True):
                assert np.array_equal(np.frombuffer(part, np.uint8), piece)
            del found, part
            assert unmapped == [1]
            pieces[0] ^= 0xFF
    finally:
        segment.close()


def test_folder_in_memory_is_avoided(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    kinds = {"/var/tmp": "ext4"}
    monkeypatch.setattr(spill, "_find_file_system", lambda path: kinds.get(path, "tmpfs"))
    assert spill.choose_folder() == "/var/tmp"
    kinds.clear()
    assert spill.choose_folder() == tempfile.gettempdir()
    assert spill._find_file_system("/proc/self") != ""


def test_segment_is_given_back_once() -> None:
    """A generator that is tried again on one worker makes its items again: then the driver names a segment twice."""
    worker_store = store.WorkerStore(threading.RLock(), ask_room=lambda size: False, explain_full=lambda *given: "")
    for _ in range(2):
        assert worker_store.obey(7, False), "the driver waits to hear how large the pool is"
    assert worker_store.get_account() == (0, 0)
