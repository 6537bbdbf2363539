"""The list of thorough tests names tests that are there, once each."""

from pathlib import Path

import pytest

from tests import lanes

ROOT = Path(__file__).parents[1]

LANES = [lanes.THOROUGH, lanes.UNHURRIED]
BEGINNINGS = [beginning for lane in LANES for beginnings in lane.values() for beginning in beginnings]


@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_an_entry_names_tests(beginning):
    path, _, name = beginning.partition("::")
    assert (ROOT / path).exists()
    if name:
        text, name = (ROOT / path).read_text(), name.partition("[")[0].partition("::")[0]  # a method may be inherited
        assert f"def {name}" in text or f"class {name}" in text
    assert BEGINNINGS.count(beginning) == 1
    for lane in LANES:
        inside = [other for beginnings in lane.values() for other in beginnings if beginning.startswith(other)]
        assert beginning not in inside or inside == [beginning]


def test_reasons():
    assert list(lanes.list_reasons("tests/engine/ray/test_state.py::test_a")) == [lanes.RAY]
    assert list(lanes.list_reasons("tests/core/test_ends.py::test_a")) == []
