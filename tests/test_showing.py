"""What parts of a process show of themselves to viewers."""

from __future__ import annotations

import gc
import json
import os

import pytest

from hocket._base import showing


class Part:
    def __init__(self, number: int) -> None:
        self.number = number


def read(part: Part) -> showing.Facts:
    if part.number < 0:
        raise ValueError("no such number")
    return {"number": part.number}


def test_parts_are_shown_as_long_as_they_live() -> None:
    first, second = Part(1), Part(2)
    showing.show("parts", first, read)
    showing.show("parts", second, read)
    assert showing.describe()["parts"] == [{"number": 1}, {"number": 2}]
    first.number = 3
    assert showing.describe()["parts"] == [{"number": 3}, {"number": 2}]
    del first
    assert showing.describe()["parts"] == [{"number": 2}]
    del second
    assert "parts" not in showing.describe()


def test_part_that_is_shown_twice_is_there_once() -> None:
    part = Part(1)
    showing.show("parts", part, read)
    showing.show("parts", part, lambda one: {"is_second": one.number})
    assert showing.describe()["parts"] == [{"is_second": 1}]


def test_failure_is_told_and_hides_nothing() -> None:
    wrong, right = Part(-1), Part(1)
    showing.show("parts", wrong, read)
    showing.show("parts", right, read)
    assert showing.describe()["parts"] == [{"problem": "ValueError: no such number"}, {"number": 1}]


def test_newest_are_shown_of_many() -> None:
    parts = [Part(number) for number in range(showing.MOST + 5)]
    for part in parts:
        showing.show("parts", part, read)
    assert [one["number"] for one in showing.describe()["parts"]] == list(range(5, showing.MOST + 5))


def test_part_in_a_cycle_goes_with_it() -> None:
    part = Part(1)
    part.__dict__["self"] = part
    showing.show("parts", part, read)
    del part
    gc.collect()
    assert "parts" not in showing.describe()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_fork_has_what_its_parent_had() -> None:
    part = Part(1)
    showing.show("parts", part, read)
    reader, writer = os.pipe()
    with showing._lock:  # as if another thread had it
        pid = os.fork()
        if pid == 0:
            os.write(writer, json.dumps(showing.describe()["parts"]).encode())
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        assert json.loads(answer.read()) == [{"number": 1}]
    assert os.waitpid(pid, 0)[1] == 0
