"""list_named_actors, get_node_ip_address and log_once."""

from __future__ import annotations

from typing import Any

import pytest

import hocket
from hocket.util import get_node_ip_address, list_named_actors, log_once


class PlainThing:
    def get_names(self) -> list[str]:
        return list_named_actors()


Thing: Any = hocket.remote(PlainThing)


def test_named_actors(any_session: hocket.SessionContext) -> None:
    assert list_named_actors() == []
    first = Thing.options(name="first").remote()
    second = Thing.options(name="second", namespace="other").remote()
    unnamed = Thing.remote()
    assert list_named_actors() == ["first"]
    assert sorted(entry["name"] for entry in list_named_actors(all_namespaces=True)) == ["first", "second"]
    assert {"name": "second", "namespace": "other"} in list_named_actors(all_namespaces=True)
    assert hocket.get([thing.get_names.remote() for thing in (first, second, unnamed)]) == [
        ["first"],
        ["second"],
        ["first"],
    ]
    hocket.kill(first)
    with pytest.raises(hocket.exceptions.ActorDiedError, match="killed"):
        hocket.get(first.get_names.remote())
    assert list_named_actors() == []


def test_named_actors_without_a_session() -> None:
    with pytest.raises(hocket.exceptions.SessionClosedError, match=r"Call hocket.init\(\) first"):
        list_named_actors()


def test_address(any_session: hocket.SessionContext) -> None:
    assert get_node_ip_address() == hocket.nodes()[0]["NodeManagerAddress"]


def test_log_once() -> None:
    assert [log_once("a key of this test") for _ in range(3)] == [True, False, False]
