"""The dashboard in Firefox: a smoke test. Firefox's own remote protocol (Marionette) drives it, without a driver."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.observe import test_parts
from tests.observe.test_dashboard import end, start

FIREFOX = os.environ.get("FIREFOX") or shutil.which("firefox-esr") or shutil.which("firefox") or ""

pytestmark = [
    pytest.mark.long,
    pytest.mark.slow,
    pytest.mark.timeout(180),
    pytest.mark.skipif(not FIREFOX, reason="needs Firefox: apt install firefox-esr, or FIREFOX=/path/to/it"),
]

PREFERENCES = """
user_pref("marionette.port", 0);
user_pref("datareporting.policy.dataSubmissionEnabled", false);
user_pref("app.update.enabled", false);
user_pref("network.captive-portal-service.enabled", false);
user_pref("browser.shell.checkDefaultBrowser", false);
"""


class Firefox:
    """A browser without a screen."""

    def __init__(self, profile: Path) -> None:
        (profile / "user.js").write_text(PREFERENCES)
        command = [FIREFOX, "--headless", "--no-remote", "--marionette", "--profile", str(profile)]
        self.process = subprocess.Popen(
            command, env={**os.environ, "HOME": str(profile)}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        port = profile / "MarionetteActivePort"
        while not (port.exists() and port.read_text().strip()):
            assert self.process.poll() is None, "Firefox has ended"
            time.sleep(0.05)
        self._socket = socket.create_connection(("127.0.0.1", int(port.read_text())), timeout=60)
        self._numbers = itertools.count(1)
        self._read()  # it introduces itself
        self.tell("WebDriver:NewSession", capabilities={"alwaysMatch": {"pageLoadStrategy": "normal"}})

    def _read(self) -> Any:
        size = b""
        while (byte := self._socket.recv(1)) != b":":
            size += byte
        data = b""
        while len(data) < int(size):
            data += self._socket.recv(int(size) - len(data))
        return json.loads(data)

    def tell(self, command: str, **given: Any) -> Any:
        data = json.dumps([0, next(self._numbers), command, given]).encode()
        self._socket.sendall(b"%d:%b" % (len(data), data))
        _, _, error, result = self._read()
        assert error is None, error
        return result

    def run(self, script: str) -> Any:
        """Run a function's body in the page; return what it returns."""
        return self.tell("WebDriver:ExecuteScript", script=script, args=[])["value"]

    def wait(self, script: str) -> None:
        """Wait until a condition holds in the page."""
        deadline = time.monotonic() + 30
        while not self.run(script):
            assert time.monotonic() < deadline, self.run("return document.body.innerText")
            time.sleep(0.1)

    def turn(self, page: str) -> None:
        """Turn to a page of the dashboard."""
        self.run(f"[...document.querySelectorAll('nav button')].find((one) => one.innerText === {page!r}).click()")

    def close(self) -> None:
        self._socket.close()
        self.process.kill()
        self.process.wait()


@pytest.fixture
def firefox(tmp_path: Path) -> Iterator[Firefox]:
    opened = Firefox(tmp_path)
    yield opened
    opened.close()


def test_pages_in_firefox(firefox: Firefox) -> None:
    program = test_parts.Program()
    running = start(str(program.process.pid))
    try:
        firefox.tell("WebDriver:Navigate", url=f"http://127.0.0.1:{running.port}/#{running.token}")
        firefox.wait("return document.querySelector('#counts')?.innerText.includes('written')")
        assert firefox.run("return location.hash") == ""
        firefox.turn("Servers")
        firefox.wait("return document.querySelector('#staleness') !== null")
        assert "<b>weights</b>" in firefox.run("return document.body.innerText")
        firefox.turn("Data")
        firefox.wait("return document.body.innerText.includes('Execution 1: over')")
        for page in ("Training", "Search", "Mesh", "Workers", "Actors", "Memory", "Errors"):
            firefox.turn(page)
            firefox.wait(f"return document.querySelector('[aria-current=page]').innerText === {page!r}")
        assert firefox.run("return document.querySelectorAll('.bad').length") == 0
    finally:
        end(running)
        program.process.kill()
        program.process.communicate()
