"""Names of actors while somebody is creating the actor: taken, not there yet, and free again if there will be none."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hocket
from hocket.testing.suites.programs import wait_until

pytestmark = pytest.mark.about_local("how a worker claims a name")


def _build(value: Any) -> Any:
    return value


class SlowToSend:
    """Says that it is being sent, and waits there for a word."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[int]]:
        (self.folder / "sending").touch()
        wait_until((self.folder / "go").exists)
        return _build, (7,)


class Holder:
    def __init__(self, value: object) -> None:
        self.value = value

    def get_value(self) -> object:
        return self.value


@hocket.remote
def create(folder: Path) -> None:
    holder = hocket.remote(Holder).options(name="slow", lifetime="detached").remote(SlowToSend(folder))
    hocket.get(holder.get_value.remote())


def test_an_actor_is_waited_for_while_its_name_is_claimed(session: hocket.SessionContext, tmp_path: Path) -> None:
    made = create.remote(tmp_path)
    wait_until((tmp_path / "sending").exists)
    timer = threading.Timer(0.2, (tmp_path / "go").touch)
    timer.start()
    assert hocket.get(hocket.get_actor("slow").get_value.remote()) == 7
    hocket.get(made)
    timer.join()


def test_a_name_is_free_again_if_its_actor_could_not_be_sent(session: hocket.SessionContext) -> None:
    @hocket.remote(max_retries=0)
    def fail_to_create() -> str:
        try:
            hocket.remote(Holder).options(name="unsendable").remote(threading.Lock())
        except TypeError as error:
            return str(error)
        return ""

    assert "cannot pickle '_thread.lock'" in hocket.get(fail_to_create.remote())
    began = time.monotonic()
    with pytest.raises(ValueError, match="Failed to look up actor with name 'unsendable'"):
        hocket.get_actor("unsendable")
    assert time.monotonic() - began < 5, "it waited for nobody"
    holder = hocket.remote(Holder).options(name="unsendable").remote(3)
    assert hocket.get(holder.get_value.remote()) == 3
