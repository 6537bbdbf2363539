"""The contract of a framework's backend for values on a mesh. Each method's docstring is a promise."""

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
"""The module with a framework's ``BACKEND``, by the framework's name."""


StepOfValues: TypeAlias = Callable[..., tuple[Any, list[tensors.DTensor]]]
"""A function of a list of values, arguments and keyword arguments; returns a result, and as many new values."""


class Backend(abc.ABC):
    """A framework's implementation of meshes. There is one instance in a process."""

    name: ClassVar[str]
    """The framework's name."""

    more_devices: ClassVar[str]
    """The sentence of an error message that explains how a program gets more devices."""

    @abc.abstractmethod
    def list_devices(self, device_type: str, count: int | None) -> list[str]:
        """Return the names of this process's devices of a type.

        Args:
            device_type: A type such as ``"CPU"``.
            count: The number that the caller wants. Where CPU devices are virtual, as many are made if possible.
        """

    def list_all_devices(self, device_type: str, count: int | None) -> list[str]:
        """Return the names of the devices of a type in all processes, process by process.

        Default: the result of `list_devices`, for frameworks where that includes all processes.

        Args:
            device_type: A type such as ``"CPU"``.
            count: The number of devices that the caller wants; each process gives an equal part.

        Raises:
            RuntimeError: The processes are not joined.
            ValueError: The number of processes does not divide `count`.
        """
        return self.list_devices(device_type, count)

    @abc.abstractmethod
    def check_mesh(self, mesh: meshes.Mesh) -> None:
        """Raise a ValueError if a device of the mesh does not exist."""

    @abc.abstractmethod
    def list_local(self, mesh: meshes.Mesh) -> list[int]:
        """Return the numbers of this process's devices on the mesh, in order."""

    @abc.abstractmethod
    def flatten(self, tree: Any) -> tuple[list[tuple[str, Any]], Callable[[Sequence[Any]], Any]]:
        """Take a model's values apart.

        Args:
            tree: The framework's structure of values.

        Returns:
            The values with their names, whose parts are joined by slashes: ``"dense/kernel"``; and a function that
            builds the same structure from other values, in this order.
        """

    def list_buffers(self, tree: Any) -> frozenset[str]:
        """Return the names of values that are no parameters: they are replicated under any rules. Default: none."""
        return frozenset()

    def list_frozen(self, tree: Any) -> frozenset[str]:
        """Return the names of values without a gradient, including buffers. Default: none."""
        return frozenset()

    @abc.abstractmethod
    def prepare_to_load(self, tree: Any, names: Sequence[str]) -> None:
        """Give a tree the values that a checkpoint has, such as an optimizer's state, which its first step creates.

        Args:
            tree: The structure that values are loaded into.
            names: The names of the values in the checkpoint.
        """

    @abc.abstractmethod
    def is_value(self, value: object) -> bool:
        """Tell whether a value is an array of the framework, or a DTensor of this backend."""

    @abc.abstractmethod
    def distribute(self, value: Any, layout: layouts.Layout) -> tensors.DTensor:
        """Spread an array, which every process has whole, by a layout. The array stays unchanged."""

    @abc.abstractmethod
    def pack(self, parts: Sequence[Any], layout: layouts.Layout) -> tensors.DTensor:
        """Make one value from the parts on this process's devices, in the order of their numbers; shapes are valid."""

    @abc.abstractmethod
    def unpack(self, value: tensors.DTensor) -> list[Any]:
        """Return the parts on this process's devices as the framework's arrays, in the order of their numbers."""

    @abc.abstractmethod
    def relayout(self, value: tensors.DTensor, layout: layouts.Layout) -> tensors.DTensor:
        """Change a value's layout, on the same mesh, by exactly the steps of `plan_relayout`."""

    @abc.abstractmethod
    def call(self, function: Callable[..., Any], layout: layouts.Layout, args: Sequence[Any], kwargs: Any) -> Any:
        """Call a function that makes an array, and spread it. Where the framework can do so, no device holds more than
        its part; elsewhere each device briefly holds the whole array."""

    @abc.abstractmethod
    def to_numpy(self, value: Any) -> npt.NDArray[Any]:
        """Return an array of the framework, or of numpy, as a numpy array."""

    @abc.abstractmethod
    def gather_objects(self, value: object) -> list[Any]:
        """Return the objects of all processes, in the same order everywhere. All processes call this method."""

    @abc.abstractmethod
    def get_process(self) -> int:
        """Return the number of this process among all processes."""

    @abc.abstractmethod
    def is_traced(self, value: tensors.DTensor) -> bool:
        """Tell whether a value, without a layout, belongs to a function that is being compiled or differentiated."""

    @abc.abstractmethod
    def differentiate(
        self, function: Callable[[Sequence[tensors.DTensor]], Any], values: Sequence[tensors.DTensor]
    ) -> tuple[Any, list[tensors.DTensor]]:
        """Call a function of values; return its scalar result, and its gradient by each value."""

    @abc.abstractmethod
    def compile(self, function: StepOfValues, outcome: Sequence[layouts.Layout], *, donate: bool) -> StepOfValues:
        """Compile a step.

        Args:
            function: The step.
            outcome: The layouts of the values that the step returns.
            donate: Whether the returned values may take over the memory of the given ones.
        """

    @abc.abstractmethod
    def register_variable(self, kind: type[Any]) -> None:
        """Let functions that the framework transforms accept instances of a class whose `value` is a DTensor."""

    @abc.abstractmethod
    def wait_for_all(self, mesh: meshes.Mesh) -> None:
        """Wait until all devices of the mesh have reached this call."""


def get_backend(name: str) -> Backend:
    """Return a framework's backend."""
    if name not in MODULES:
        raise ValueError(f"framework must be one of {list(MODULES)}, but received {name!r}.")
    extras.load(name, f"A mesh with framework={name!r}", name, f"Run pip install 'hocket[{name}]'.")
    found: Backend = importlib.import_module(MODULES[name]).BACKEND
    return found


def choose_framework() -> str:
    """Return the default framework of a mesh: an imported one, else the first that is installed."""
    found = next((name for name in MODULES if sys.modules.get(name)), None)
    found = found or next((name for name in MODULES if importlib.util.find_spec(name)), None)
    if found is None:
        remedy = "Run pip install 'hocket[jax]' or pip install 'hocket[torch]'."
        extras.check("torch", "A mesh", "JAX or PyTorch", remedy)
    return found or "torch"


def find_framework(value: object) -> str:
    """Return the framework of a value, by the modules of its class and base classes; empty if it has none."""
    roots = [kind.__module__.partition(".")[0] for kind in type(value).__mro__]
    return next((root for root in roots if root in MODULES), "")
