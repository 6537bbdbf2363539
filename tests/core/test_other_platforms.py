"""Elsewhere than on Linux: one sentence, and the in-process engine works.

A system is another one here by its name, and by the lack of what Linux alone has.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

PRETEND = """
import fcntl, os, platform, select, signal, socket, sys

import numpy, psutil, rich  # they look at the system, too, and are not what is tested

sys.platform = {name!r}
platform.system = lambda: {system!r}
ONLY_LINUX = {{
    os: "memfd_create MFD_CLOEXEC MFD_ALLOW_SEALING eventfd eventfd_read eventfd_write pipe2 sched_getaffinity "
    "sched_setaffinity pidfd_open getrandom setns unshare splice copy_file_range posix_fadvise getxattr O_TMPFILE O_PATH",
    select: "epoll EPOLLIN EPOLLOUT",
    signal: "SIGRTMIN SIGRTMAX SIGPWR sigtimedwait sigwaitinfo pidfd_send_signal",
    fcntl: "F_ADD_SEALS F_GET_SEALS F_SETPIPE_SZ F_GETPIPE_SZ F_OFD_SETLK",
    socket: "SOCK_CLOEXEC SOCK_NONBLOCK SO_PEERCRED MSG_CMSG_CLOEXEC",
}}
gone = 0
for module, names in ONLY_LINUX.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
            gone += 1
assert gone > 20
"""


def run(name: str, program: str) -> str:
    system = {"darwin": "Darwin", "win32": "Windows"}[name]
    source = PRETEND.format(name=name, system=system) + textwrap.dedent(program)
    environment = {key: value for key, value in os.environ.items() if key != "HOCKET_ENGINE"}
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_one_sentence_says_what_is_not_there_and_what_to_write():
    program = """
        import hocket
        try:
            hocket.init()
        except hocket.exceptions.UnsupportedPlatformError as error:
            print(error)
        print(hocket.is_initialized())
    """
    sentence, is_open = run("darwin", program).splitlines()
    assert sentence == (
        "Worker processes need Linux, and this is darwin: use hocket.init(engine='inprocess') or "
        "HOCKET_ENGINE=inprocess, which run everything in this process, or a Linux machine, container or WSL 2."
    )
    assert is_open == "False"


@pytest.mark.slow
def test_everything_that_needs_no_worker_process_works(tmp_path):
    program = f"""
        import hocket
        from hocket import data, train

        hocket.init(engine="inprocess")

        @hocket.remote
        def add(x, y):
            return x + y

        @hocket.remote
        class Counter:
            def __init__(self):
                self.total = 0

            def add(self, amount):
                self.total += amount
                return self.total

            def count(self, most):
                yield from range(most)

        counter = Counter.remote()
        print(hocket.get(add.remote(add.remote(1, 2), hocket.put(3))), hocket.get(counter.add.remote(4)))
        print([hocket.get(ref) for ref in counter.count.options(num_returns="streaming").remote(3)])
        print(data.range(10).map_batches(lambda batch: {{"id": batch["id"] * 2}}).sum("id"))
        trainer = train.DataParallelTrainer(
            lambda: train.report({{"loss": 0.5}}),
            scaling_config=train.ScalingConfig(num_workers=0),
            run_config=train.RunConfig(storage_path={str(tmp_path)!r}),
        )
        print(trainer.fit().metrics)
        hocket.shutdown()
    """
    assert run("darwin", program).splitlines() == ["6 4", "[0, 1, 2]", "90", "{'loss': 0.5}"]


@pytest.mark.slow
def test_doctor_says_what_is_missing():
    program = """
        import contextlib
        from hocket.cli import main
        with contextlib.redirect_stderr(sys.stdout):
            print(main.main(["doctor"]))
    """
    *lines, code = run("darwin", program).splitlines()
    assert "worker processes need Linux: use a Linux machine" in " ".join(" ".join(lines).split())
    assert code == "1"
