"""The reference shows all that is public: `tools/reference.py`, which reads sources, beside what Python finds."""

from __future__ import annotations

import argparse
import functools
import importlib
import inspect
import runpy
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hocket.cli import main
from tests import names_pages

ROOT = Path(__file__).parents[1]

FRAMEWORKS = ("hocket.train.", "hocket.collective.torch", "hocket.mesh.tensorflow", "hocket.tune.integration.")
"""Modules that import a framework, for seconds; and their classes have the methods of the framework's classes."""


@pytest.fixture(scope="module")
def reference() -> Any:
    return types.SimpleNamespace(**runpy.run_path(str(ROOT / "tools" / "reference.py")))


def list_methods(kind: type) -> Iterator[str]:
    """Yield the methods that a class has from this package: functions, properties, and what binds either."""
    for owner in kind.__mro__:
        if not owner.__module__.startswith("hocket"):
            continue
        for name, value in vars(owner).items():
            found = getattr(value, "__func__", value)
            is_method = inspect.isfunction(found) or isinstance(value, property | functools.cached_property)
            if is_method and not name.startswith("_") and not names_pages.only_refuses(found):
                yield name


def test_no_page_is_empty_and_no_name_is_without_a_word(reference: Any) -> None:
    assert reference.list_faults() == []


def test_python_finds_no_more_than_the_reference_shows(reference: Any) -> None:
    """Names that a module makes public, and methods that its classes have, inherited ones too."""
    expected = reference.list_expected()
    missing, modules, methods = [], 0, 0
    for module, shown in expected.items():
        if f"{module}.".startswith(FRAMEWORKS) and module != "hocket.train":
            continue
        found = importlib.import_module(module)
        modules += 1
        for name in reference.list_public(module):
            value = getattr(found, name)  # what the reference shows is there
            if isinstance(value, type) and value.__module__.startswith("hocket"):
                names = [f"{module}.{name}.{one}" for one in set(list_methods(value))]
                methods += len(names)
                missing += [one for one in names if one not in shown]
        own = [name for name, value in vars(found).items() if getattr(value, "__module__", "") == module]
        missing += [f"{module}.{one}" for one in own if not one.startswith("_") and f"{module}.{one}" not in shown]
    assert missing == []
    assert (modules > 40, methods > 1_000) == (True, True)


def test_main_classes_have_their_methods(reference: Any) -> None:
    names = {name for shown in reference.list_expected().values() for name in shown}
    for name in (
        *(
            "data.Dataset.map_batches",
            "data.Dataset.groupby",
            "data.Dataset.write_parquet",
            "data.Dataset.iter_batches",
        ),
        *(
            "data.DataIterator.iter_torch_batches",
            "data.preprocessors.StandardScaler.fit_transform",
            "ps.Variable.assign",
        ),
        *("train.torch.TorchTrainer.fit", "train.keras.KerasTrainer.fit", "train.horovod.torch.allreduce"),
        *("tune.schedulers.ASHAScheduler.on_trial_result", "tune.search.optuna.OptunaSearch.suggest", "get", "remote"),
    ):
        assert f"hocket.{name}" in names, name


def test_what_the_reference_lacks_is_found(reference: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    modules = reference.list_faults.__globals__["MODULES"]
    monkeypatch.delitem(modules, "hocket.data.expressions")
    monkeypatch.setitem(modules, "hocket.train.horovod", "Empty")
    faults = reference.list_faults()
    assert "hocket.data.expressions.col of data.md is on no page" in faults
    assert "hocket.train.horovod has no public name" in faults


def list_commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.values()


def test_the_page_of_commands_has_each_command_and_option(reference: Any) -> None:
    parser = main.build_parser()
    page = reference.build_command_page(parser)
    assert sorted(one.prog for one in list_commands(parser)) == sorted(
        line.removeprefix("## ") for line in page.splitlines() if line.startswith("## ")
    )
    options = {
        word
        for one in list_commands(parser)
        for action in one._actions
        if action.help != argparse.SUPPRESS
        for word in action.option_strings
    }
    assert {"--workers", "--json", "--output"} <= options
    assert [word for word in options if f"`{word}" not in page] == []
