"""For the examples in docstrings: a session, which need not be opened or ended in each of them.
And where the fixtures are that tests of several rooms share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import hocket

pytest_plugins = ["tests.progress_notes", "tests.s3_server"]


@pytest.fixture(autouse=True)
def _give_an_example_a_session(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have an example that opens none run in this process, and end the session with it."""
    if not isinstance(request.node, pytest.DoctestItem):
        yield
        return
    if not any("hocket.init(" in example.source for example in request.node.dtest.examples):
        monkeypatch.setenv("HOCKET_ENGINE", "inprocess")
    yield
    if hocket.is_initialized():
        hocket.shutdown()
