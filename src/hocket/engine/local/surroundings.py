"""The surroundings that a worker takes on for its work: environment variables, folders, threads, GPUs."""

from __future__ import annotations

import builtins
import os
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from hocket._base import texts
from hocket.kernel import resources

_THREADS = "OMP_NUM_THREADS"

_is_threads_ours = _THREADS not in os.environ
"""Whether the user has not chosen a number of threads, so this module chooses it."""


def apply_environment(text: str) -> None:
    """Take on a runtime environment, for good; see `hocket.core.environments` for the form of the text."""
    import json  # imported here: few tasks have an environment, and every worker loads this module

    environment = json.loads(text)
    os.environ.update(environment.get("env_vars", {}))
    folder = environment.get("working_dir")
    for path in reversed(environment.get("py_modules", [])):
        sys.path.insert(0, os.path.dirname(path))
    if folder:
        os.chdir(folder)
        sys.path.insert(0, folder)


def set_threads(cpus: float) -> None:
    """Let numerical libraries use as many threads as the work has CPUs, at least one.

    Libraries read the variable when they are loaded; torch also takes a number later.
    """
    if not _is_threads_ours:
        return
    threads = max(1, int(cpus))
    if os.environ.get(_THREADS) == str(threads):
        return
    os.environ[_THREADS] = str(threads)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(threads)


def set_gpus(gpu_ids: Sequence[resources.GpuId]) -> None:
    """Make only the work's own GPUs visible."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, gpu_ids))


def close_input() -> None:
    """Make standard input an empty file here and in forked processes: the terminal is the driver's."""
    if sys.stdin is not None:
        sys.stdin.close()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 (it stays open as long as the process lives)
    builtins.input = _refuse_input


def _refuse_input(prompt: object = "", /) -> NoReturn:
    raise EOFError(
        f"input({prompt!r:.80}) was called in a worker, which has no terminal. Call input() in the driver, and pass "
        "the result as an argument."
    )


def add_hint(error: BaseException, extra: Mapping[str, object]) -> None:
    """Add advice to an error that comes from work without a GPU."""
    if "CUDA" in texts.safe_text(error) and not extra.get("gpu_ids") and os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        BaseException.add_note(
            error, "This task or actor requested no GPU, so it sees none. Write @hocket.remote(num_gpus=1)."
        )
