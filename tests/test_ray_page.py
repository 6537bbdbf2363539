"""The page for who comes from Ray says what is there, and names all that Ray has."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hocket._base import missing
from tests import names_pages

PAGE = Path(__file__).parents[1] / "docs" / "coming_from" / "ray.md"
DATA_PAGE = Path(__file__).parents[1] / "docs" / "data_names.md"
PARTS = "Parts that are not here"

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


PROGRAM = """
import ray
import ray.data as rd
import ray.util
from ray import tune
from ray.util.queue import Queue

import rayon

def count():
    import ray
    import ray as same
    from ray.train import report
    return ray is same, rd.range(3).count(), ray.util.ActorPool.__name__, ray.train.report is report, rayon.WORD

print(count(), Queue.__name__, tune.choice([1]).__class__.__module__)
"""


def test_the_pages_command_changes_a_program(tmp_path: Path) -> None:
    (line,) = re.findall(r"^\$ (sed .*)$", PAGE.read_text(), re.MULTILINE)
    (tmp_path / "before.py").write_text(PROGRAM)
    (tmp_path / "rayon.py").write_text("WORD = 'left alone'\n")
    subprocess.run(["bash", "-c", line], cwd=tmp_path, check=True)
    done = subprocess.run([sys.executable, "after.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout == "(True, 3, 'ActorPool', True, 'left alone') Queue hocket.tune.search.domains\n"


@functools.cache
def read_reasons() -> dict[str, dict[str, str]]:
    """Return what the pages say of names that are not there, by the owners that `missing` knows them by."""
    found: dict[str, dict[str, str]] = {}
    pages = {**names_pages.read_reasons(PAGE, "###"), **names_pages.read_reasons(DATA_PAGE, "##")}
    for title, reasons in pages.items():
        for name, reason in reasons.items():
            owner, _, member = name.rpartition(".")
            found.setdefault(owner or title.replace("ray", "hocket", 1), {})[member] = reason
    return {owner: reasons for owner, reasons in found.items() if not owner.startswith("Expr")}


def spread(table: dict[str, str]) -> dict[str, str]:
    return {name: reason for names, reason in table.items() for name in names.split()}


def test_what_is_said_of_missing_names_is_what_the_pages_say() -> None:
    assert {owner: spread(table) for owner, table in missing.NAMES.items()} == read_reasons()
    parts = names_pages.read_reasons(PAGE, "##")[PARTS]
    assert spread(missing.PARTS) == {name.replace("ray", "hocket", 1): reason for name, reason in parts.items()}


def test_each_missing_name_says_what_to_write() -> None:
    for owner, reasons in read_reasons().items():
        if not owner.startswith("hocket"):
            continue
        module = importlib.import_module(owner)
        for name, reason in reasons.items():
            if name in vars(module):  # it refuses when it is used
                continue
            with pytest.raises(AttributeError) as found:
                getattr(module, name)
            assert str(found.value) == f"{owner} has no {name}, which Ray has: {reason}."
            with pytest.raises(ImportError) as refused:
                exec(f"from {owner} import {name}")
            assert str(refused.value) == str(found.value)


@pytest.mark.parametrize("name", list(spread(missing.PARTS)))
def test_each_missing_part_says_what_to_write(name: str) -> None:
    reason = re.escape(spread(missing.PARTS)[name])
    with pytest.raises(ModuleNotFoundError, match=f"^There is no module {name}, which Ray has: {reason}") as found:
        importlib.import_module(f"{name}.inner")
    assert found.value.name == name
    package, _, last = name.rpartition(".")
    assert not hasattr(importlib.import_module(package), last)
    with pytest.raises(ImportError, match=f"{last}, which Ray has: "):
        exec(f"from {package} import {last}")


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed.")
def test_the_page_names_all_that_ray_has():
    command = [sys.executable, "-W", "ignore", "-c", RAYS, *read_page()]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    for title, names in json.loads(done.stdout.splitlines()[-1]).items():
        there, gone = read_page()[title]
        assert sorted([*there, *gone]) == names, title
