"""The contract of a framework with values that are spread over a mesh. Each method's docstring is a promise."""

from __future__ import annotations

import abc
import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeAlias

import numpy.typing as npt

from hocket import extras
from hocket.mesh import layouts, meshes, tensors

MODULES = {"jax": "hocket.mesh.backends.jax", "torch": "hocket.mesh.backends.torch"}
"""By the name of a framework: the module whose ``BACKEND`` it is."""


StepOfValues: TypeAlias = Callable[..., tuple[Any, list[tensors.DTensor]]]
"""A function of a list of values, arguments and keyword arguments; returns something, and as many values."""


class Backend(abc.ABC):
    """A framework's part. There is one in a process."""

    name: ClassVar[str]
    """The framework's."""

    more_devices: ClassVar[str]
    """The sentence of an error that says how a program gets more devices."""

    @abc.abstractmethod
    def list_devices(self, device_type: str, count: int | None) -> list[str]:
        """Return what the devices of a type are called.

        Args:
            device_type: Such as ``"CPU"``.
            count: How many the caller would like. Where devices of a processor are virtual, there are then so many.
        """

    def list_all_devices(self, device_type: str, count: int | None) -> list[str]:
        """Return what the devices of a type are called, of all processes: those of one after those of another.

        Default: what `list_devices` returns, where that has all.

        Args:
            device_type: Such as ``"CPU"``.
            count: How many the caller would like; as many of each process.

        Raises:
            RuntimeError: The processes are not joined.
            ValueError: The number does not divide by that of the processes.
        """
        return self.list_devices(device_type, count)

    @abc.abstractmethod
    def check_mesh(self, mesh: meshes.Mesh) -> None:
        """Raise ValueError if a device of the mesh does not exist."""

    @abc.abstractmethod
    def list_local(self, mesh: meshes.Mesh) -> list[int]:
        """Return the numbers of the mesh's devices that are this process's, in order."""

    @abc.abstractmethod
    def flatten(self, tree: Any) -> tuple[list[tuple[str, Any]], Callable[[Sequence[Any]], Any]]:
        """Take a model's values apart.

        Args:
            tree: What the framework nests values in.

        Returns:
            The values, each with its name, whose parts are joined by slashes: ``"dense/kernel"``; and a function that
            builds the same from other values, in this order.
        """

    def list_buffers(self, tree: Any) -> frozenset[str]:
        """Return the names of values that are no parameters: they are replicated, whatever a rule says. Default:
        none."""
        return frozenset()

    def list_frozen(self, tree: Any) -> frozenset[str]:
        """Return the names of values that have no gradient, buffers among them. Default: none."""
        return frozenset()

    @abc.abstractmethod
    def prepare_to_load(self, tree: Any, names: Sequence[str]) -> None:
        """Have a tree have what a checkpoint has, if it can: what an optimizer keeps from its first step on.

        Args:
            tree: What values are loaded into.
            names: Those in the checkpoint.
        """

    @abc.abstractmethod
    def is_value(self, value: object) -> bool:
        """Tell whether it is an array of the framework, or a DTensor of this backend."""

    @abc.abstractmethod
    def distribute(self, value: Any, layout: layouts.Layout) -> tensors.DTensor:
        """Spread an array, which every process has whole, as the layout says. The array stays as it is."""

    @abc.abstractmethod
    def pack(self, parts: Sequence[Any], layout: layouts.Layout) -> tensors.DTensor:
        """Make one value of what the devices of this process have, in the order of their numbers. Shapes are right."""

    @abc.abstractmethod
    def unpack(self, value: tensors.DTensor) -> list[Any]:
        """Return what the devices of this process have, in the order of their numbers: arrays of the framework."""

    @abc.abstractmethod
    def relayout(self, value: tensors.DTensor, layout: layouts.Layout) -> tensors.DTensor:
        """Spread a value in another way, on the same mesh, by the steps of `plan_relayout` and no others."""

    @abc.abstractmethod
    def call(self, function: Callable[..., Any], layout: layouts.Layout, args: Sequence[Any], kwargs: Any) -> Any:
        """Call a function that makes an array. Where the framework can, no device has more of it than the layout says;
        elsewhere each has all of it for a moment."""

    @abc.abstractmethod
    def to_numpy(self, value: Any) -> npt.NDArray[Any]:
        """Return an array of the framework, or of numpy, as numpy's."""

    @abc.abstractmethod
    def gather_objects(self, value: object) -> list[Any]:
        """Return what each process gave, the same in all of them. All processes call it."""

    @abc.abstractmethod
    def get_process(self) -> int:
        """Return the number of this process among them."""

    @abc.abstractmethod
    def is_traced(self, value: tensors.DTensor) -> bool:
        """Tell whether it is a value of a function that is being compiled or differentiated, which has no layout."""

    @abc.abstractmethod
    def differentiate(
        self, function: Callable[[Sequence[tensors.DTensor]], Any], values: Sequence[tensors.DTensor]
    ) -> tuple[Any, list[tensors.DTensor]]:
        """Return a scalar function of values, and its gradient by each of them."""

    @abc.abstractmethod
    def compile(self, function: StepOfValues, outcome: Sequence[layouts.Layout], *, donate: bool) -> StepOfValues:
        """Compile a step.

        Args:
            function: The step.
            outcome: The layouts of the values that it returns.
            donate: Whether the memory of the values that it takes may be used for those.
        """

    @abc.abstractmethod
    def register_variable(self, kind: type[Any]) -> None:
        """Let functions that the framework transforms take instances of a class whose `value` is a DTensor."""

    @abc.abstractmethod
    def wait_for_all(self, mesh: meshes.Mesh) -> None:
        """Return when all devices of the mesh have come to here."""


def get_backend(name: str) -> Backend:
    """Return a framework's backend."""
    if name not in MODULES:
        raise ValueError(f"framework must be one of {list(MODULES)}, but received {name!r}.")
    extras.load(name, f"A mesh with framework={name!r}", name, f"Run pip install 'hocket[{name}]'.")
    found: Backend = importlib.import_module(MODULES[name]).BACKEND
    return found


def choose_framework() -> str:
    """Return which framework a mesh is for if nobody says: one that is imported, else the first that is installed."""
    found = next((name for name in MODULES if sys.modules.get(name)), None)
    found = found or next((name for name in MODULES if importlib.util.find_spec(name)), None)
    if found is None:
        remedy = "Run pip install 'hocket[jax]' or pip install 'hocket[torch]'."
        extras.check("torch", "A mesh", "JAX or PyTorch", remedy)
    return found or "torch"


def find_framework(value: object) -> str:
    """Return the framework of a value, by the classes that it is an instance of; empty if it has none."""
    roots = [kind.__module__.partition(".")[0] for kind in type(value).__mro__]
    return next((root for root in roots if root in MODULES), "")
