"""Whether a training function uses an optimizer, by a look at its code."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import optim
from torch.optim import SGD

from hocket.train.frameworks.torch import framework, mentions
from hocket.train.strategies import hosting
from hocket.train.torch import AllReduce


def by_attribute(model: Any) -> Any:
    return torch.optim.SGD(model.parameters())


def by_module(model: Any) -> Any:
    return optim.SGD(model.parameters())


def by_class(model: Any) -> Any:
    return SGD(model.parameters())


def by_helper(model: Any) -> Any:
    return by_class(model)


def in_inner_function() -> Any:
    return [lambda model: torch.optim.SGD(model.parameters())]


def by_closure() -> Callable[..., Any]:
    build = torch.optim.SGD
    return lambda model: build(model.parameters())


def before_its_cell_is_filled() -> Callable[..., Any]:
    def ask() -> Any:
        return late

    if ask.__closure__ is None:
        late = 1
    return ask


def without() -> Any:
    return torch.ones(3).sum()


class Call:
    def __call__(self) -> Any:
        return self.build()

    def build(self) -> Any:
        return torch.optim.SGD

    def rest(self) -> None:
        pass


def call(given: Any) -> Any:
    return given()


@pytest.mark.parametrize(
    "function",
    [
        by_attribute,
        by_module,
        by_class,
        by_helper,
        in_inner_function,
        by_closure(),
        hosting.add_strategy(by_class, AllReduce(), framework.FRAMEWORK.use_strategy),
        Call(),
        Call().rest,
        functools.partial(by_class, 1),
        functools.partial(call, Call()),
        hosting.add_strategy(functools.partial(call, given=by_class), None, framework.FRAMEWORK.use_strategy),
    ],
)
def test_what_names_an_optimizer(function: Callable[..., Any]) -> None:
    assert mentions.finds(function, "torch.optim")


@pytest.mark.parametrize(
    "function", [without, before_its_cell_is_filled(), functools.partial(call, torch.ones(3)), print, int, None]
)
def test_what_names_none_that_can_be_seen(function: Callable[..., Any]) -> None:
    assert not mentions.finds(function, "torch.optim")
