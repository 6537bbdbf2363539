"""Numbers from the environment: what they may be, and what is said of others."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from hocket._base import settings


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (None, 20.0),
        ("", 20.0),
        ("  ", 20.0),
        ("0", 0.0),
        ("1.5", 1.5),
        ("1e300", settings.MOST_SECONDS),
        ("inf", settings.MOST_SECONDS),
    ],
)
def test_what_a_variable_may_be(text: str | None, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOCKET_TRIED_S", raising=False)
    if text is not None:
        monkeypatch.setenv("HOCKET_TRIED_S", text)
    assert settings.read_seconds("HOCKET_TRIED_S", 20) == seconds


@pytest.mark.parametrize("text", ["bad", "-1", "nan", "1 s", "-inf"])
def test_what_it_may_not_be(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_TRIED_S", text)
    with pytest.raises(
        ValueError, match=f"^HOCKET_TRIED_S must be a number of seconds .* but is '{text}'. Set it to 20,"
    ):
        settings.read_seconds("HOCKET_TRIED_S", 20)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "HOCKET_STORE_TIMEOUT_S",
        "HOCKET_COLLECTIVE_STALL_S",
        "HOCKET_TRAIN_WORKER_GROUP_START_TIMEOUT_S",
        "HOCKET_TRAIN_COLLECTIVE_WARN_INTERVAL_S",
        "HOCKET_TRAIN_COLLECTIVE_TIMEOUT_S",
        "HOCKET_TRAIN_PREEMPTION_NOTICE_S",
    ],
)
def test_import_names_the_variable(name: str) -> None:
    code = "import hocket.train.data_parallel_trainer, hocket.train.run.controller"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, name: "bad"}, capture_output=True, text=True, check=False
    )
    assert f"ValueError: {name} must be a number of seconds" in done.stderr
