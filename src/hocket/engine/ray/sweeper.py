"""A script that removes the remains of a Ray that we started: its processes, its workers' processes, and its folder.

It runs as a process beside the driver, and waits until the pipe between them closes, because the session was closed or
the driver died. Ray's own processes end with the driver, but their folder stays, and so do processes that a user's task
has started. A process belongs to the folder if it has the folder in its environment, or writes to a file in it: some
of Ray's processes overwrite their environment with their title, and outlive a killed driver by more than six seconds
(measured, Ray 2.60).

The script runs without the site's packages: it needs only the standard library, and starts in some 15 ms.
"""

from __future__ import annotations

import os
import shutil
import signal
import stat
import sys
import time

VARIABLE = "HOCKET_RAY_FOLDER"
"""The environment variable that holds the folder, in all processes that Ray starts."""

PATIENCE_SECONDS = 5.0
"""How many seconds to wait for the end of processes after SIGKILL. A guess; only a process in an uninterruptible call
needs longer than a moment."""

GRACE_SECONDS = 0.5
"""How many seconds Ray's processes have to end by themselves. A guess; they usually die at once with the driver."""


def list_processes(folder: str, driver: int) -> list[int]:
    """Return the processes that belong to the folder."""
    if not os.path.isdir("/proc/self"):
        return []
    pids = {int(name) for name in os.listdir("/proc") if name.isdigit()} - {os.getpid(), driver}
    return [pid for pid in pids if _belongs(pid, folder, driver)]


def _belongs(pid: int, folder: str, driver: int) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            if f"{VARIABLE}={folder}".encode() in file.read().split(b"\0"):
                return True
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return False
    return any(_is_written_by_ray(f"/proc/{pid}/fd/{name}", folder, driver) for name in names)


def _is_written_by_ray(link: str, folder: str, driver: int) -> bool:
    """Return whether a descriptor writes to a file of the folder. The driver's logs do not count, because its forks
    have them open, too."""
    try:
        target, mode = os.readlink(link), os.lstat(link).st_mode
    except OSError:
        return False
    return target.startswith(folder + "/") and bool(mode & stat.S_IWUSR) and not target.endswith(f"_{driver}.log")


def sweep(folder: str, driver: int, grace: float) -> None:
    """End the processes of a folder, and remove it. First they have `grace` seconds to end by themselves."""
    patience = time.monotonic() + grace
    while list_processes(folder, driver) and time.monotonic() < patience:
        time.sleep(0.02)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (left := list_processes(folder, driver)) and time.monotonic() < deadline:
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.02)
    shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    """Wait for the pipe to close, then sweep."""
    while os.read(0, 1024):
        pass
    sweep(sys.argv[1], int(sys.argv[2]), GRACE_SECONDS)


if __name__ == "__main__":
    main()
