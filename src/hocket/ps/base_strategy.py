"""The base class of strategies in any process: makes variables, pulls and pushes."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy.typing as npt

from hocket._base import texts
from hocket.ps import checks
from hocket.ps.access import closure_context, links
from hocket.ps.checkpoint import snapshots
from hocket.ps.rules import initializers, optimizers, partitioners
from hocket.ps.stores import records
from hocket.ps.stores.memory import Array
from hocket.ps.variables import embedding, foreign, handles, registry, variable


class BaseStrategy(abc.ABC):
    """A strategy as any process sees it: it makes variables, pulls, pushes, and takes snapshots."""

    def __init__(self, address: links.Address) -> None:
        self.address: Final = address

    @abc.abstractmethod
    def _get_registry(self) -> registry.Registry:
        """Return the registry, which makes variables."""

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
        """Make a variable; ``ps.Variable(...)`` under `scope` calls this method.

        Args:
            initial_value: An array, or a function of a shape, which is called for each shard and returns the shard's
                part. A function with an argument ``offset`` receives the start of its shard, too:
                ``initial_value(shape, offset=(row, 0))``.
            name: The name in messages and checkpoints. Default: ``variable_0`` and so on.
            shape: The variable's shape; required with a function.
            dtype: Default: the array's, but float32 for float64; float32 for a function.
            optimizer: Default: the strategy's.
            partitioner: Default: the strategy's.
            colocate_with: A variable; the new one lies on that variable's server, and is not split.
            exist_ok: Whether to return the existing variable of this name unchanged, if there is one.

        Raises:
            RuntimeError: The caller is a closure; only the driver makes variables.
            ValueError: The name is taken, or a function has no shape.
            CapacityError: The variable does not fit into memory.
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
        """Make a table; ``ps.Embedding(...)`` under `scope` calls this method.

        Args:
            rows: The number of ids, from 0. None: ids are any 64-bit numbers.
            dim: The length of a row.
            name: The name in messages and checkpoints. Default: ``embedding_0`` and so on.
            dtype: A float type.
            initializer: Computes a row before its first update. Default: uniform in -0.05 to 0.05, as in Keras. Tables
                with the same seed have the same rows.
            initial_value: The values of all rows, [rows, dim], instead of an initializer.
            optimizer: Default: the strategy's.
            capacity: With ``rows=None``: the number of ids that there is room for. Memory is taken as ids come.
            eviction: With ``rows=None``: the rows that go when the table is full. Default: none; then new ids raise.
            exist_ok: Whether to return the existing table of this name unchanged, if there is one.

        Raises:
            RuntimeError: The caller is a closure; only the driver makes tables.
            ValueError: A number is out of range, the name is taken, or arguments do not go together.
            CapacityError: The table does not fit into memory.
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

        With a bound on staleness, wait until this worker may read.

        Args:
            variables: A list of variables.

        Raises:
            TypeError: `variables` is no list of variables.
        """
        variables = _check_variables(variables)
        links.open_link(self.address).enter(closure_context.get_optional_context())
        return [one.read_value() for one in variables]

    def push(self, gradients: Iterable[tuple[Any, Any]], *, scale: float = 1.0) -> links.Outcome:
        """Apply gradients, on each server all of them or none.

        Args:
            gradients: Pairs of a gradient and its variable, as in Keras's ``apply_gradients``; each variable once. The
                gradient is an array for a variable, or `IndexedSlices` for a table or for some rows of a variable.
            scale: The factor of the learning rate, for this push.

        Returns:
            Whether the push was applied, and its staleness.

        Raises:
            TypeError: `gradients` is no list of pairs of a gradient and a variable.
            ValueError: A gradient does not fit its variable, a variable is named twice, or the scale is not finite.
            NonFiniteGradientError: A gradient has NaN or infinity, and the policy is to raise.
            PushTimeoutError: Another worker's push must be applied first, and does not come in time.
        """
        given: object = float(scale) if hasattr(scale, "__float__") else scale  # also a framework's scalar array
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

    # -- state --

    @property
    def version(self) -> int:
        """Number of pushes of gradients (or synchronous steps) applied."""
        return links.open_link(self.address).gate.version

    def snapshot(self) -> snapshots.Snapshot:
        """Return all variables as they are now, in one cut, while training goes on.

        The process must run on the first server's machine. See `hocket.ps.checkpoint.snapshots`.
        """
        return snapshots.take(self.address, self._list_made())


def build(address: links.Address, record: records.VariableRecord) -> Any:
    """Return the handle of a variable or table that the registry has made."""
    if record.is_table:
        return handles.build(embedding.Embedding, address, record)
    cls = variable.ShardedVariable if len(record.parts) > 1 else variable.Variable
    return handles.build(cls, address, record)


def _build(gradient: object, target: object, scale: float) -> dict[int, list[records.Operation]] | None:
    """Return a gradient's operations on each server; None if the push is to be skipped."""
    if isinstance(target, embedding.Embedding):
        if not isinstance(gradient, embedding.IndexedSlices):
            raise TypeError(
                f"The gradient of the table `{target.name}` must be IndexedSlices(values, ids), which name its rows, "
                f"but received {type(gradient).__name__}. Write ps.IndexedSlices(values, ids), or "
                "found.gradient(values) after found = table.pull(ids)."
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
                f"pull takes variables, but received {texts.safe_repr(one)}. Pass variables that ps.Variable(...) made."
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
