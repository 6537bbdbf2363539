"""joblib on Hocket's workers."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import joblib
import pytest

import hocket
from hocket.util.joblib import register_hocket, register_ray


@pytest.fixture(autouse=True)
def registered() -> None:
    register_ray()
    register_hocket()


def invert(x: int) -> float:
    return 1 / x


@pytest.mark.parametrize("name", ["hocket", "ray"])
def test_parallel(any_session: hocket.SessionContext, name: str) -> None:
    with joblib.parallel_backend(name):
        assert joblib.Parallel()(joblib.delayed(lambda x: x * x)(x) for x in range(200)) == [x * x for x in range(200)]
        results = joblib.Parallel(return_as="generator")(joblib.delayed(abs)(-x) for x in range(5))
        assert list(results) == [0, 1, 2, 3, 4]


@pytest.mark.needs("processes")
def test_it_runs_in_other_processes(session: hocket.SessionContext) -> None:
    with joblib.parallel_config("hocket", n_jobs=2):
        pids = set(joblib.Parallel(batch_size=1)(joblib.delayed(os.getpid)() for _ in range(20)))
    assert os.getpid() not in pids
    assert 1 <= len(pids) <= 2


def test_errors(any_session: hocket.SessionContext) -> None:
    with joblib.parallel_backend("hocket"):
        with pytest.raises(ZeroDivisionError, match="division by zero"):
            joblib.Parallel()(joblib.delayed(invert)(x) for x in (1, 0, 2))
        assert joblib.Parallel()(joblib.delayed(invert)(x) for x in (1, 2)) == [1, 0.5]


def test_exceptions_may_be_results(any_session: hocket.SessionContext) -> None:
    with joblib.parallel_backend("hocket"):
        results = joblib.Parallel()(joblib.delayed(ValueError)(x) for x in range(2))
    assert [repr(result) for result in results] == ["ValueError(0)", "ValueError(1)"]


def test_number_of_jobs(any_session: hocket.SessionContext) -> None:
    with joblib.parallel_backend("hocket"):
        assert [joblib.effective_n_jobs(count) for count in (None, -1, -2, 1, 7)] == [2, 2, 1, 1, 7]
        with pytest.raises(ValueError, match="n_jobs == 0 in Parallel has no meaning"):
            joblib.effective_n_jobs(0)
    assert joblib.Parallel(n_jobs=1, backend="hocket")(joblib.delayed(abs)(-x) for x in range(3)) == [0, 1, 2]


def test_resources_of_the_processes(session: hocket.SessionContext) -> None:
    def look() -> dict[str, Any]:
        return hocket.get_runtime_context().get_assigned_resources()

    with joblib.parallel_backend("ray", n_jobs=2, ray_remote_args={"num_cpus": 0.5}):
        assert joblib.Parallel()(joblib.delayed(look)() for _ in range(2)) == [{"CPU": 0.5}] * 2


def test_without_joblib() -> None:
    source = "import sys; sys.modules['joblib'] = None; import hocket.util; import hocket.util.joblib"
    ended = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert "MissingExtraError: hocket.util.joblib needs joblib" in ended.stderr
    assert "pip install joblib" in ended.stderr
