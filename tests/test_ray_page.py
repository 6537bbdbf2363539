"""The page for who comes from Ray says what is there, and names all that Ray has."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import names_pages

PAGE = Path(__file__).parents[1] / "docs" / "coming_from" / "ray.md"

RAYS = """
import importlib, json, sys, types

found = {}
for name in sys.argv[1:]:
    module = importlib.import_module(name)
    names = getattr(module, "__all__", None) or [
        one for one, value in vars(module).items()
        if not isinstance(value, types.ModuleType) and str(getattr(value, "__module__", "")).startswith(name)
    ]
    found[name] = sorted({one for one in names if not one.startswith("_")} - {"PublicAPI", "DeveloperAPI"})
print(json.dumps(found))
"""


@functools.cache
def read_page() -> dict[str, tuple[list[str], list[str]]]:
    return names_pages.read(PAGE, "###")


def test_names_that_only_refuse_are_found() -> None:
    schedulers, state = importlib.import_module("hocket.tune.schedulers"), importlib.import_module("hocket.util.state")
    assert names_pages.only_refuses(schedulers.ResourceChangingScheduler)
    assert names_pages.only_refuses(state.get_log)
    assert not names_pages.only_refuses(schedulers.ASHAScheduler)
    assert not names_pages.only_refuses(state.get_task)


def test_what_the_page_says_is_so():
    pages = read_page()
    assert sum(len(there) for there, _ in pages.values()) > 200
    for title, (there, gone) in pages.items():
        module = importlib.import_module(title.replace("ray", "hocket", 1))
        assert [name for name in there if not names_pages.is_there(module, name)] == [], (
            f"{title}: the page says that they are there"
        )
        assert [name for name in gone if names_pages.is_there(module, name)] == [], (
            f"{title}: the page says that they are not there"
        )


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed.")
def test_the_page_names_all_that_ray_has():
    command = [sys.executable, "-W", "ignore", "-c", RAYS, *read_page()]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    for title, names in json.loads(done.stdout.splitlines()[-1]).items():
        there, gone = read_page()[title]
        assert sorted([*there, *gone]) == names, title
