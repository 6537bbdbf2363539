"""The strategy in every process that has it: variables on its servers, pulls and pushes."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy.typing as npt

from hocket._base import texts
from hocket.ps import (
    checks,
    closure_context,
    embedding,
    foreign,
    handles,
    initializers,
    links,
    optimizers,
    partitioners,
    registry,
    snapshots,
    variable,
)
from hocket.ps.stores import records
from hocket.ps.stores.memory import Array


class BaseStrategy(abc.ABC):
    """A strategy in every process that has it: it makes variables, pulls, pushes, and shows itself."""

    def __init__(self, address: links.Address) -> None:
        self.address: Final = address

    @abc.abstractmethod
    def _get_registry(self) -> registry.Registry:
        """Return who makes variables."""

    def _list_made(self) -> list[records.VariableRecord]:
        return self._get_registry().list_made()

    # -- variables --

    def make_variable(
        self,
        initial_value: object,
        *,
        name: str | None = None,
        shape: Sequence[int] | None = None,
        dtype: npt.DTypeLike | None = None,
        optimizer: optimizers.Optimizer | None = None,
        partitioner: partitioners.PartitionFunction | None = None,
        colocate_with: variable.BaseVariable | None = None,
        exist_ok: bool = False,
    ) -> variable.Variable | variable.ShardedVariable:
        """Make a variable; ``ps.Variable(...)`` under `scope` does it.

        Args:
            initial_value: An array; or a function of a shape, which is called for each shard, and returns its part. One
                that has an argument ``offset`` gets there where its shard begins:
                ``initial_value(shape, offset=(row, 0))``.
            name: For messages and checkpoints. Default: ``variable_0`` and so on.
            shape: Needed for a function.
            dtype: Default: the array's, with 64-bit floats made 32; float32 for a function.
            optimizer: Default: the strategy's.
            partitioner: Default: the strategy's.
            colocate_with: A variable; this one lies on its server, and is not split.
            exist_ok: Whether to return the one that has the name, as it is, if there is one.

        Raises:
            RuntimeError: It is called in a closure: there the driver makes variables.
            ValueError: The name is taken, or a function has no shape.
            CapacityError: It does not fit into memory.
        """
        settings = registry.VariableSettings(
            name=name,
            shape=shape,
            dtype=dtype,
            optimizer=optimizer,
            partitioner=partitioner,
            colocate_with=colocate_with.servers[0] if colocate_with is not None else None,
            exist_ok=exist_ok,
        )
        made: Any = build(self.address, self._get_registry().make_variable(initial_value, settings))
        return made  # type: ignore[no-any-return]

    def make_embedding(
        self,
        rows: int | None,
        dim: int,
        *,
        name: str | None = None,
        dtype: npt.DTypeLike = "float32",
        initializer: initializers.Initializer | None = None,
        initial_value: object = None,
        optimizer: optimizers.Optimizer | None = None,
        capacity: int | None = None,
        eviction: records.Eviction | None = None,
        exist_ok: bool = False,
    ) -> embedding.Embedding:
        """Make a table; ``ps.Embedding(...)`` under `scope` does it.

        Args:
            rows: How many ids there are, from 0. None: ids are any 64-bit numbers.
            dim: How long a row is.
            name: For messages and checkpoints. Default: ``embedding_0`` and so on.
            dtype: A float.
            initializer: What a row is before its first update. Default: uniform in -0.05 to 0.05, as in Keras. Tables
                with one seed have the same rows.
            initial_value: All rows, [rows, dim], instead.
            optimizer: Default: the strategy's.
            capacity: With ``rows=None``: how many ids there is room for. Memory is taken as they come.
            eviction: With ``rows=None``: which rows go when it is full. Default: none; then a new id is an error.
            exist_ok: Whether to return the one that has the name, as it is, if there is one.

        Raises:
            RuntimeError: It is called in a closure: there the driver makes tables.
            ValueError: A number is out of range, the name is taken, or arguments do not go together.
            CapacityError: It does not fit into memory.
        """
        settings = registry.TableSettings(
            name=name,
            dtype=dtype,
            initializer=initializer,
            initial_value=initial_value,
            optimizer=optimizer,
            capacity=capacity,
            eviction=eviction,
            exist_ok=exist_ok,
        )
        made: embedding.Embedding = build(self.address, self._get_registry().make_embedding(rows, dim, settings))
        return made

    # -- training --

    def pull(self, variables: Iterable[variable.BaseVariable]) -> list[Array]:
        """Return copies of variables.

        With a bound on staleness it waits until this worker may read.

        Args:
            variables: Which: a list of them.

        Raises:
            TypeError: It is no list of variables.
        """
        variables = _check_variables(variables)
        links.open_link(self.address).enter(closure_context.get_optional_context())
        return [one.read_value() for one in variables]

    def push(self, gradients: Iterable[tuple[Any, Any]], *, scale: float = 1.0) -> links.Outcome:
        """Apply gradients, on each server all of them or none.

        Args:
            gradients: Pairs of a gradient and its variable, as Keras' ``apply_gradients`` takes them: an array for a
                variable, `IndexedSlices` for a table, or for some rows of a variable. A variable is named once.
            scale: What the learning rate is multiplied with, this time.

        Returns:
            Whether it was applied, and how stale it was.

        Raises:
            TypeError: It is no list of pairs of a gradient and a variable.
            ValueError: A gradient does not fit its variable, a variable is named twice, or the scale is no number.
            NonFiniteGradientError: A gradient has NaN or infinity, and the policy is to raise.
            PushTimeoutError: Another worker is to be applied first, and does not come.
        """
        given: object = float(scale) if hasattr(scale, "__float__") else scale  # also an array's, of a framework
        scale = checks.require_finite("scale", given, "Leave it out for 1.")
        operations: dict[int, list[records.Operation]] = {}
        seen: set[str] = set()
        for gradient, target in _check_pairs(gradients):
            foreign.refuse_in_graph(getattr(target, "name", ""))
            if getattr(target, "name", None) in seen:
                raise ValueError(f"`{target.name}` is named twice in one push. Add its gradients up first.")
            found = _build(gradient, target, scale)
            if found is None:
                return links.Outcome(is_applied=False, staleness=0)
            seen.add(target.name)
            for home, some in found.items():
                operations.setdefault(home, []).extend(some)
        return links.open_link(self.address).push(closure_context.get_optional_context(), operations)

    # -- what there is --

    @property
    def version(self) -> int:
        """How many pushes of gradients (or synchronous steps) were applied."""
        return links.open_link(self.address).gate.version

    def snapshot(self) -> snapshots.Snapshot:
        """Return all variables as they are now, in one cut, while training goes on.

        For a process on the first server's machine. See `hocket.ps.snapshots`.
        """
        return snapshots.take(self.address, self._list_made())


def build(address: links.Address, record: records.VariableRecord) -> Any:
    """Return a variable or table that the registry has made."""
    if record.is_table:
        return handles.build(embedding.Embedding, address, record)
    cls = variable.ShardedVariable if len(record.parts) > 1 else variable.Variable
    return handles.build(cls, address, record)


def _build(gradient: object, target: object, scale: float) -> dict[int, list[records.Operation]] | None:
    """Return what a gradient does on each server; None if the push is to be skipped."""
    if isinstance(target, embedding.Embedding):
        if not isinstance(gradient, embedding.IndexedSlices):
            raise TypeError(
                f"The gradient of the table `{target.name}` is IndexedSlices(values, ids), but received "
                f"{type(gradient).__name__}. A table's gradient names its rows. Write ps.IndexedSlices(values, ids), "
                "or found.gradient(values) of what `found = table.pull(ids)` returned."
            )
        return target.build_operations(gradient, scale)
    if not isinstance(target, variable.BaseVariable):
        raise TypeError(
            f"A push takes pairs of a gradient and its variable, but received {type(target).__name__} for a variable."
        )
    if isinstance(gradient, embedding.IndexedSlices):
        gradient = target.sum_rows(gradient.indices, gradient.values)
    return target.build_operations(gradient, scale)


def _check_variables(given: object) -> list[variable.BaseVariable]:
    """Return the variables to pull, as a list."""
    if isinstance(given, variable.BaseVariable):
        raise TypeError(
            f"pull takes a list of variables, but received `{given.name}` alone. Write pull([{given.name}])."
        )
    if not isinstance(given, Iterable):
        raise TypeError(
            f"pull takes a list of variables, but received {texts.safe_repr(given)}. Write pull([variable])."
        )
    found: list[variable.BaseVariable] = []
    for one in given:
        if isinstance(one, embedding.Embedding):
            raise TypeError(f"pull takes variables, but received the table `{one.name}`. Write {one.name}.pull(ids).")
        if not isinstance(one, variable.BaseVariable):
            raise TypeError(
                f"pull takes variables, but received {texts.safe_repr(one)}. Pass what ps.Variable(...) made."
            )
        found.append(one)
    return found


def _check_pairs(given: object) -> list[tuple[Any, Any]]:
    """Return the pairs of a gradient and its variable to push, as a list."""
    pairs: list[Any] = list(given) if isinstance(given, Iterable) else [given]
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise TypeError(
                "push takes a list of pairs of a gradient and its variable, but received "
                f"{texts.safe_repr(pair)} for a pair. Write push([(gradient, variable)])."
            )
    return pairs
