"""Fixtures for tests of training."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import hocket


@pytest.fixture
def here() -> Iterator[None]:
    """A session in this process."""
    hocket.init(engine="inprocess")
    yield
    hocket.shutdown()


KERAS = "classic_trainer frameworks horovod_keras keras optimizer_oracle own_strategy parameter_server_keras tensorflow"
"""Modules whose tests have several backends of Keras: a session has one."""


@pytest.fixture(scope="module")
def has_common_session(request: pytest.FixtureRequest) -> bool:
    return request.module.__name__.rpartition("test_")[2] not in KERAS.split()
