"""Programs of the ranks in the contract of frameworks: a small model, strategies that record calls, and checks."""

from __future__ import annotations

import abc
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from hocket import ps, train
from hocket.train import strategies
from hocket.train.frameworks import contract, weights
from hocket.train.run import backend

FEATURES, OUTPUTS, ROWS = 4, 3, 8

LR = 0.25
"""The learning rate of `Specimen.train`. A power of two, so that a factor of two changes no other bits."""

DTYPES = ("float32", "float64", "float16", "int32", "int64", "uint8", "bool")
"""The dtypes of a framework's arrays, except those that its limits name."""


class Specimen(abc.ABC):
    """A small model of a framework: a linear layer from `FEATURES` to `OUTPUTS` numbers, with a bias.

    All methods but `find_limits` and `build_config` run in ranks. A specimen travels to the ranks, so it must be
    possible to pickle it.
    """

    framework: ClassVar[str]
    """The name of the module that has ``FRAMEWORK``."""

    def get_framework(self) -> contract.Framework[Any]:
        """Return the framework."""
        found: contract.Framework[Any] = importlib.import_module(self.framework).FRAMEWORK
        return found

    def find_limits(self) -> Mapping[str, str]:
        """Return the limits of the ranks' framework. Called in the driver. Default: the framework's limits there."""
        return self.get_framework().limits

    def build_config(self) -> backend.BackendConfig:
        """Return the configuration that joins the ranks. Default: the framework's."""
        return self.get_framework().build_config()

    @abc.abstractmethod
    def build_model(self, key: object) -> Any:
        """Return a model with a random kernel.

        Args:
            key: The return value of the framework's ``enable_reproducibility``.
        """

    @abc.abstractmethod
    def train(
        self, model: object, rows: strategies.Array, labels: strategies.Array, steps: int, *, on_servers: bool
    ) -> Any:
        """Train as a user does, with the adapter's functions: stochastic gradient descent with `LR`.

        Args:
            model: A model of `build_model`, perhaps with other weights.
            rows: The rank's rows, float32[n, FEATURES]. Each step uses all of them.
            labels: The rows' labels, float32[n, OUTPUTS]. The loss is the mean squared error.
            steps: The number of steps.
            on_servers: Whether servers take the steps, for optimizers that must know.

        Returns:
            The model, made equal in all ranks (`synchronize`).
        """

    @abc.abstractmethod
    def list_optimizers(self, model: object) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
        """Return an optimizer that servers can apply, and another that they cannot, each with one of its parameters."""

    def compile(self, function: Callable[..., object]) -> Callable[..., Any]:
        """Return a function of arrays, compiled as the framework compiles steps. Default: the function itself."""
        return function


def make_rows(seed: int = 0) -> tuple[strategies.Array, strategies.Array]:
    """Return rows and their labels."""
    generator = np.random.default_rng(seed)
    rows = generator.normal(size=(ROWS, FEATURES)).astype("float32")
    return rows, (rows @ generator.normal(size=(FEATURES, OUTPUTS))).astype("float32")


# --- strategies that record calls, or change something ----------------------------------------------------------------


@dataclass(frozen=True)
class Probe(strategies.Strategy):
    """A strategy that changes nothing, and records its calls in a file."""

    path: str

    def open(self, ranks: strategies.Ranks) -> strategies.StrategyRuntime:
        self.note("open")
        return _ProbeRuntime(self)

    def note(self, what: str) -> None:
        """Add a word to the file."""
        with Path(self.path).open("a") as file:
            file.write(f"{what}\n")


class _ProbeRuntime(strategies.StrategyRuntime):
    def __init__(self, probe: Probe) -> None:
        self._probe = probe

    def open_next(self) -> strategies.StrategyRuntime:
        self._probe.note("open_next")
        return self

    def begin(self, model: strategies.HostModel) -> None:
        assert sorted(model.shapes) == sorted(array.shape for array in model.read())
        self._probe.note("begin")

    def average(self, flat: strategies.Array, rows: float) -> None:
        self._probe.note(f"average:{flat.size}")

    def after_steps(self, model: strategies.HostModel, count: int) -> None:
        self._probe.note(f"after:{count}")

    def close(self) -> None:
        self._probe.note("close")


@dataclass(frozen=True)
class Doubling(strategies.Strategy):
    """A strategy that doubles gradients."""

    def open(self, ranks: strategies.Ranks) -> strategies.StrategyRuntime:
        return _DoublingRuntime()


class _DoublingRuntime(strategies.StrategyRuntime):
    def average(self, flat: strategies.Array, rows: float) -> None:
        flat *= 2


@dataclass(frozen=True)
class Setting(strategies.Strategy):
    """A strategy that sets all parameters to a number after each step."""

    value: float

    def open(self, ranks: strategies.Ranks) -> strategies.StrategyRuntime:
        return _SettingRuntime(self.value)


class _SettingRuntime(strategies.StrategyRuntime):
    averages_gradients = False

    def __init__(self, value: float) -> None:
        self._value = value

    def after_steps(self, model: strategies.HostModel, count: int) -> None:
        model.write_flat(np.full_like(model.read_flat(), self._value))


@dataclass(frozen=True)
class Stepping(strategies.Strategy):
    """A strategy that takes each step itself: it sets the parameters to a number."""

    value: float

    def open(self, ranks: strategies.Ranks) -> strategies.StrategyRuntime:
        return _SteppingRuntime(self.value)


class _SteppingRuntime(strategies.StrategyRuntime):
    takes_steps = True

    def __init__(self, value: float) -> None:
        self._value = value

    def take_step(self, flat: strategies.Array, rate: float, *, counts: bool) -> None:
        assert rate == LR
        flat[:] = self._value


@dataclass(frozen=True)
class Odd(strategies.Strategy):
    """A strategy with an `open` that returns an object which no framework can drive."""

    def open(self, ranks: strategies.Ranks) -> Any:
        return object()


# --- in ranks ---------------------------------------------------------------------------------------------------------


def _build(specimen: Specimen, seed: int = 0) -> tuple[contract.Framework[Any], object]:
    framework = specimen.get_framework()
    return framework, specimen.build_model(framework.enable_reproducibility(seed))


def _read(framework: contract.Framework[Any], model: object) -> list[strategies.Array]:
    return [array for _, array in framework.list_weights(model)]


def _are_equal(some: Sequence[strategies.Array], others: Sequence[strategies.Array]) -> bool:
    return all(
        one.dtype == other.dtype and one.tobytes() == other.tobytes() for one, other in zip(some, others, strict=True)
    )


def check_round_trips(specimen: Specimen, dtypes: Sequence[str]) -> None:
    framework = specimen.get_framework()
    generator = np.random.default_rng(0)
    for dtype in dtypes:
        whole = generator.integers(0, 2 if dtype == "bool" else 100, (3, 4)).astype(dtype)
        for array in (whole, whole[:, ::2], whole[0, :1], whole[:0], whole[0, 0].reshape(())):
            back = framework.to_host(framework.from_host(array), "f()")
            assert back.shape == array.shape, (back.shape, array.shape)
            assert _are_equal([back], [array]), (back, array)


def check_refusal(specimen: Specimen) -> None:
    with pytest.raises(TypeError, match=r"the_caller\(\) takes an? "):
        specimen.get_framework().to_host(object(), "the_caller()")


def check_crossing(specimen: Specimen) -> None:
    framework = specimen.get_framework()
    seen: list[list[tuple[int, ...]]] = []

    def change(arrays: Sequence[strategies.Array]) -> None:
        seen.append([array.shape for array in arrays])
        arrays[0][:] *= 2
        arrays[1][:] = np.arange(4)

    step = specimen.compile(lambda one, other: framework.cross([one, other], change))
    given = np.arange(6, dtype="float32").reshape(2, 3)
    for number in (1, 2, 3):
        first, second = step(framework.from_host(given * number), framework.from_host(np.ones(4, "float32")))
        assert np.array_equal(framework.to_host(first, "f"), given * number * 2)
        assert framework.to_host(second, "f").tolist() == [0, 1, 2, 3]
        assert seen == [[(6,), (4,)]] * number, seen


def check_crossing_error(specimen: Specimen) -> None:
    framework = specimen.get_framework()

    def change(arrays: Sequence[strategies.Array]) -> None:
        raise ValueError("no room for it")

    step = specimen.compile(lambda array: framework.cross([array], change))
    with pytest.raises(Exception, match="no room for it"):
        framework.to_host(step(framework.from_host(np.ones(2, "float32")))[0], "f")


def check_weights(specimen: Specimen) -> None:
    framework, model = _build(specimen)
    named = framework.list_weights(model)
    assert len({name for name, _ in named}) == len(named) == 2
    assert sorted(array.size for _, array in named) == [OUTPUTS, FEATURES * OUTPUTS]
    kept = [array.copy() for _, array in named]
    for _, array in named:
        array[...] = 9
    assert _are_equal(_read(framework, model), kept)
    new = [np.random.default_rng(1).normal(size=array.shape).astype(array.dtype) for array in kept]
    model = framework.set_weights(model, new)
    assert _are_equal(_read(framework, model), new)
    assert [name for name, _ in framework.list_weights(model)] == [name for name, _ in named]


def check_saving(specimen: Specimen, folder: str) -> None:
    framework, model = _build(specimen)
    wanted = _read(framework, model)
    framework.save_weights(model, folder)
    with np.load(Path(folder, weights.FILE_NAME), allow_pickle=False) as file:
        found = [file[name] for name in file.files if not name.startswith(".")]
    assert sorted(array.tobytes() for array in found) == sorted(array.tobytes() for array in wanted)
    _, other = _build(specimen, 1)
    assert not _are_equal(_read(framework, other), wanted)
    assert _are_equal(_read(framework, framework.load_weights(other, folder)), wanted)


def check_other_weights(specimen: Specimen, folder: str) -> None:
    framework, model = _build(specimen)
    before = _read(framework, model)
    with pytest.raises(FileNotFoundError):
        framework.load_weights(model, folder)
    for others in ([np.zeros(7)], [np.zeros((2, 2)), np.zeros(1)]):
        weights.save(folder, [(str(number), array) for number, array in enumerate(others)])
        with pytest.raises(ValueError, match=r"checkpoint|pytree"):
            framework.load_weights(model, folder)
    assert _are_equal(_read(framework, model), before)


def check_seeds(specimen: Specimen) -> None:
    framework = specimen.get_framework()
    drawn = [_read(*_build(specimen, seed)) for seed in (3, 4, 3)]
    assert _are_equal(drawn[0], drawn[2])
    assert not _are_equal(drawn[0], drawn[1])
    for seed in (-1, 2**32):
        with pytest.raises(ValueError, match="seed must lie between 0"):
            framework.enable_reproducibility(seed)


def check_conversion(specimen: Specimen) -> None:
    framework, model = _build(specimen)
    (known, parameter), (unknown, other) = specimen.list_optimizers(model)
    if "conversion" not in framework.limits:
        assert isinstance(framework.convert_optimizer(known, parameter), ps.Optimizer)
    with pytest.raises(ValueError, match=r"[Ss]ervers"):
        framework.convert_optimizer(unknown, other)


def learn(specimen: Specimen, steps: int, *, on_servers: bool = False) -> tuple[list[strategies.Array], int]:
    framework, model = _build(specimen)
    model = specimen.train(model, *make_rows(), steps, on_servers=on_servers)
    found = _read(framework, model)
    return found, sum(array.size for array in found)


def learn_and_fail(specimen: Specimen) -> None:
    learn(specimen, 1)
    raise ValueError("out of luck")


def learn_part(specimen: Specimen, steps: int) -> list[list[strategies.Array]]:
    """Train with a part of the rows, each rank from a model of its own; return all ranks' weights."""
    joined = specimen.get_framework().get_collectives("a_test")
    framework, model = _build(specimen, joined.rank)
    rows, labels = make_rows()
    part = slice(joined.rank, None, joined.size)
    model = specimen.train(model, rows[part], labels[part], steps, on_servers=False)
    return framework.get_collectives("a_test").all_gather_object(_read(framework, model))


def use_collectives(specimen: Specimen) -> list[list[float]]:
    joined = specimen.get_framework().get_collectives("a_test")
    mine, sent = np.array([1.0 + joined.rank]), np.array([7.0 if joined.rank == 0 else 0.0])
    joined.all_reduce(mine)
    joined.broadcast(sent)
    joined.barrier()
    place = [train.get_context().get_world_rank(), joined.rank, joined.size]
    return joined.all_gather_object([*place, float(mine[0]), float(sent[0])])
