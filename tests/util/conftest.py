"""Fixtures for the tests of `hocket.util`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import hocket
from hocket.testing import Leftovers


@pytest.fixture(params=["local", "inprocess"])
def any_session(request: pytest.FixtureRequest) -> Iterator[hocket.SessionContext]:
    """A session on two CPUs, on each engine, that leaves nothing behind."""
    before = Leftovers.look()
    with hocket.init(num_cpus=2, engine=request.param) as context:
        yield context
    assert before.list_new() == []
