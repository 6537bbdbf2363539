"""A worker's page: what it says arrives in order, and stands there if it dies before it sends it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import TypeAlias

import hypothesis
import pytest
from hypothesis import strategies as st

from hocket.engine.local import channel, journal

Ends: TypeAlias = tuple[journal.JournalChannel, channel.Channel, journal.Page]


@pytest.fixture
def ends() -> Iterator[Ends]:
    left, right = socket.socketpair()
    page = journal.Page()
    worker, driver = journal.JournalChannel(left, os.dup(page.fd)), channel.Channel(right)
    yield worker, driver, page
    worker.close()
    driver.close()
    page.close()


def receive_waiting(driver: channel.Channel) -> list[channel.Message]:
    found: list[channel.Message] = []
    while messages := driver.receive():
        found += messages
    return found


WAYS = ["post", "post_short", "post_later"]


@hypothesis.given(
    said=st.lists(st.one_of(st.none(), st.tuples(st.sampled_from(WAYS), st.integers(0, journal.LATER_BYTES)))),
    long=st.integers(-1, 40),
)
@hypothesis.settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
def test_what_is_sent_and_what_is_left_are_what_was_said(
    ends: Ends, said: list[tuple[str, int] | None], long: int
) -> None:
    """None: it is sent so far."""
    worker, driver, page = ends
    posted: list[channel.Message] = []
    waiting = 0
    arrived: list[channel.Message] = []
    for number, one in enumerate(said):
        if one is None:
            worker.flush()
            assert not worker.has_unsent()
            waiting = 0
            arrived += receive_waiting(driver)
            continue
        way, size = one
        posted.append((1, number, b"x" * (journal.BODY_BYTES if number == long and way == "post" else size)))
        getattr(worker, way)(posted[-1])
        arrived += receive_waiting(driver)
        waiting = waiting + 1 if way == "post_later" else 0
        assert worker.has_unsent() or len(arrived) == len(posted)
    certain = len(posted) - waiting
    left = page.read_unsent(len(arrived))
    assert [*arrived, *left][:certain] == posted[:certain]  # the last few may still be to be encoded
    assert [*arrived, *left] == posted[: len(arrived) + len(left)]
    worker.flush()
    assert [*arrived, *receive_waiting(driver)] == posted


def test_a_descriptor_stays_with_its_message(ends: Ends) -> None:
    worker, driver, _ = ends
    read, write = os.pipe()
    worker.post_later((1, 0))
    worker.outbox_fds.append(write)
    worker.post_short((2, 1))
    worker.flush()
    assert receive_waiting(driver) == [(1, 0), (2, 1)]
    received = driver.take_descriptor()
    os.write(received, b"x")
    assert os.read(read, 1) == b"x"
    for descriptor in (read, write, received):
        os.close(descriptor)


def test_what_waits_is_encoded_after_so_many(ends: Ends) -> None:
    worker, _, page = ends
    for number in range(journal.LATER - 1):
        worker.post_later((1, number))
    assert page.read_unsent(0) == []
    worker.post_later((1, journal.LATER - 1))
    assert len(page.read_unsent(0)) == journal.LATER
