"""For the examples in docstrings: a session that one has opened by itself, as a search does, ends with the example.
And where the fixtures are that tests of several rooms share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import hocket

pytest_plugins = ["tests.progress_notes", "tests.s3_server"]


@pytest.fixture(autouse=True)
def _end_the_session_of_an_example(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if isinstance(request.node, pytest.DoctestItem) and hocket.is_initialized():
        hocket.shutdown()
