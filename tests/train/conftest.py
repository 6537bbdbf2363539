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


@pytest.fixture(scope="module")
def has_common_session() -> bool:
    return True
