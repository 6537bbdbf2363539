"""`hocket doctor`: facts for a bug report, and checks whether this machine has all that Hocket needs."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import platform
import resource
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import psutil
from rich import box, console, table, text

import hocket
from hocket._base import texts
from hocket.cli import workload
from hocket.engine import node

PACKAGES = ("hocket", "cloudpickle", "numpy", "psutil", "rich", "torch", "tensorflow", "keras", "jax", "ray", "pyarrow")
"""The packages to list with their installed versions, without importing them."""

LIMIT_SECONDS = 30.0
"""How long each step of the self-test may take; all of them together usually take a second."""

PUT_BYTES = 64 * 2**20
"""The size of the value in the self-test: more than a small container's /dev/shm holds."""

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 (looked at, not written to)
"""The place where other programs keep shared memory."""

FEW_DESCRIPTORS = 4096
"""With fewer descriptors, a program with many large objects runs out of them: each object takes one."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """A check, and its result."""

    name: str
    detail: str
    is_ok: bool = True
    remedy: str = ""
    """Advice if the check fails."""


def run(*, as_json: bool) -> int:
    """Print the results; return 1 if a check failed, 0 otherwise."""
    checks = list(check_all())
    is_ok = all(check.is_ok for check in checks)
    if as_json:
        print(json.dumps({"ok": is_ok, "checks": [asdict(check) for check in checks]}, indent=2))
        return 0 if is_ok else 1
    built = table.Table(box=box.SIMPLE_HEAD, show_header=False)
    built.add_column(no_wrap=True)
    built.add_column(no_wrap=True)
    built.add_column(overflow="fold")
    for check in checks:
        mark = text.Text("ok", style="green") if check.is_ok else text.Text("FAILED", style="bold red")
        built.add_row(mark, check.name, text.Text(check.detail + ("" if check.is_ok else f"\n-> {check.remedy}")))
    out = console.Console(highlight=False)
    out.print(built)
    out.print("Everything works." if is_ok else "Something is wrong: see the lines marked FAILED.")
    return 0 if is_ok else 1


def check_all() -> Iterator[Check]:
    """Check the machine, then a session on it. On systems other than Linux, check only the versions."""
    yield from check_versions()
    if not sys.platform.startswith("linux"):
        return
    yield from check_machine()
    yield from check_kernel_features()
    yield from run_self_test()


# --- the machine ------------------------------------------------------------------------------------------------------


def check_versions() -> Iterator[Check]:
    """Yield the versions, without importing any package."""
    yield Check(
        name="Python", detail=f"{platform.python_version()} ({platform.python_implementation()}), {sys.executable}"
    )
    libc = " ".join(part for part in platform.libc_ver() if part) or "unknown"
    is_linux = sys.platform.startswith("linux")
    yield Check(
        name="system",
        detail=f"{platform.system()} {platform.release()} {platform.machine()}, libc {libc}",
        is_ok=is_linux,
        remedy="Hocket's worker processes need Linux: use a Linux machine, container or WSL 2.",
    )
    found = []
    for name in PACKAGES:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    yield Check(name="packages", detail=", ".join(found))


def check_machine() -> Iterator[Check]:
    """Yield the resources that a session will find."""
    affinity = len(os.sched_getaffinity(0))
    cpus = node.count_cpus()
    yield Check(
        name="CPUs",
        detail=f"{cpus} usable: {os.cpu_count()} in the machine, {affinity} by affinity"
        + (f", {cpus} by the cgroup's quota" if cpus < affinity else ", no cgroup quota below that"),
    )
    memory = psutil.virtual_memory()
    limit = node.count_memory()
    yield Check(
        name="memory",
        detail=f"{texts.format_bytes(memory.available)} free of {texts.format_bytes(memory.total)}; cgroup limit "
        + (texts.format_bytes(limit) if limit < memory.total else "none"),
        is_ok=memory.available > 256 * 2**20,
        remedy="Less than 256 MiB are free: end other programs, or use a larger machine.",
    )
    if SHARED_MEMORY.is_dir():
        detail = (
            f"{texts.format_bytes(shutil.disk_usage(SHARED_MEMORY).total)} (Hocket does not use it; PyTorch's "
            "data loaders do)"
        )
    else:
        detail = "none (Hocket does not need it)"
    yield Check(name=str(SHARED_MEMORY), detail=detail)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    now, most = ("no limit" if limit == resource.RLIM_INFINITY else f"{limit:,}" for limit in (soft, hard))
    yield Check(
        name="open files",
        detail=f"{now} now, {most} at most",
        is_ok=hard == resource.RLIM_INFINITY or hard >= FEW_DESCRIPTORS,
        remedy=f"Each large object takes a descriptor. Raise the hard limit to {FEW_DESCRIPTORS:,} or more "
        "(ulimit -Hn).",
    )
    yield Check(name="GPUs", detail=str(node.count_gpus()))


def check_kernel_features() -> Iterator[Check]:
    """Try the system calls that the engine needs."""

    yield _try(
        "memfd_create",
        lambda: os.memfd_create("hocket-doctor", os.MFD_CLOEXEC),
        "Large values are kept in memfds. Use Linux 3.17 or later, and a sandbox that allows this call.",
    )
    yield _try(
        "pidfd_open",
        lambda: os.pidfd_open(os.getpid()),
        "Use Linux 5.3 or later. Without this call, the death of a driver that forked may be noticed late.",
    )


def _try(name: str, open_one: Callable[[], int], remedy: str) -> Check:
    try:
        os.close(open_one())
    except (OSError, AttributeError) as error:
        return Check(name=name, detail=str(error), is_ok=False, remedy=remedy)
    return Check(name=name, detail="available")


# --- a session --------------------------------------------------------------------------------------------------------


def run_self_test() -> Iterator[Check]:
    """Open a session and use it; stop at the first step that fails."""
    steps: tuple[tuple[str, Callable[[], str]], ...] = (
        ("a session opens", _open),
        ("a task runs", _run_task),
        ("an actor counts", _run_actor),
        (f"{texts.format_bytes(PUT_BYTES)} travel", _put_and_get),
        ("a death is explained", _explain_death),
        ("the session closes", _close),
    )
    if hocket.is_initialized():
        yield Check(name="self-test", detail="left out: this process has a session open")
        return
    try:
        for name, step in steps:
            started = time.perf_counter()
            try:
                told = step()
            except Exception as error:  # noqa: BLE001 (whatever goes wrong is what the report is for)
                detail = f"{type(error).__name__}: {error}"
                yield Check(
                    name=name, detail=detail, is_ok=False, remedy="Report this failure, with all of this output."
                )
                return
            yield Check(name=name, detail=f"{(time.perf_counter() - started) * 1000:,.1f} ms{told}")
    finally:
        hocket.shutdown()


def _open() -> str:
    hocket.init(num_cpus=1)
    return ""


def _run_task() -> str:
    _expect(hocket.get(hocket.remote(workload.multiply).remote(6, 7), timeout=LIMIT_SECONDS), 42)
    return ", with the start of the first worker"


def _run_actor() -> str:
    counter = hocket.remote(workload.Counter).remote()
    refs = [counter.add.remote(1) for _ in range(10)]
    _expect(hocket.get(refs, timeout=LIMIT_SECONDS), list(range(1, 11)))
    return ""


def _put_and_get() -> str:
    array = np.arange(PUT_BYTES // 8)
    started = time.perf_counter()
    ref = hocket.put(array)
    rate = array.nbytes / (time.perf_counter() - started) / 1e9
    _expect(bool(np.array_equal(hocket.get(ref, timeout=LIMIT_SECONDS), array)), True)
    return f", {rate:.1f} GB/s into cold memory"


def _explain_death() -> str:
    ref = hocket.remote(workload.kill_itself).options(max_retries=0).remote()
    try:
        hocket.get(ref, timeout=LIMIT_SECONDS)
    except hocket.exceptions.WorkerCrashedError as error:
        _expect("killed by signal 9 (SIGKILL)" in str(error), True)
        return ""
    raise RuntimeError("a worker killed itself, but its task still returned a value")


def _close() -> str:
    hocket.shutdown()
    left = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended in the meantime
            left.append(child.name())
    _expect([name for name in left if name.startswith("hocket:")], [])
    return ""


def _expect(found: object, wanted: object) -> None:
    if found != wanted:
        raise RuntimeError(f"expected {wanted!r}, but received {found!r}")
