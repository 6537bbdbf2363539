"""A Keras model on JAX that is spread over a mesh of the ranks: one program over the devices of all of them.

Keras on JAX compiles a step as a function from the variables' values to the new ones. If these values, and the batch,
are global arrays, the step is a program of all ranks together: its loss is the mean over the rows of the whole batch,
and metrics, dropout and normalisation see that batch too, as in one process. XLA finds the collectives. This module
works around Keras's own functions:

- Before a step it spreads values that are not yet spread: a weight as its layout says, a variable of the optimizer as
  its weight (its name begins with the weight's path), all others replicated. So a callback or a checkpoint may assign
  whole values in between.
- In the compiled step (`train_step` and its siblings) it constrains the new values to be spread in the same way.
- Batches come from `prepare_arrays`, each rank with its rows. The last batch of an epoch may have rows that the ranks
  cannot share equally, but a global array has equal parts. Then each rank reads all of them, and the array is
  replicated: more work in one step, but no row counts twice and none is filled in, for any loss or metric.

Keras's own ``keras.distribution`` is not used: it spreads variables from the beginning, with values that all ranks must
draw alike, and gives all batches the same layout. No part of it is set, so other models are as they were.

All ranks together read a spread value as a whole: `hocket.train.frameworks.keras.variables.read`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, final

import jax
import keras
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from hocket import mesh as meshes
from hocket.collective.world import World
from hocket.mesh.backends import jax as backend
from hocket.train import strategies
from hocket.train.frameworks import spread_usage, spreading
from hocket.train.frameworks.keras import loaders, variables

_GROUPS: Final = {
    "train": ("trainable_variables", "non_trainable_variables", "optimizer", "metrics_variables"),
    "test": ("trainable_variables", "non_trainable_variables", "metrics_variables"),
    "predict": ("trainable_variables", "non_trainable_variables"),
}
"""The parts of a step's state, in Keras's order."""

_WRITERS: Final = ("save", "save_weights", "export")
"""Methods of a Keras model that write to a path, their first argument."""


@final
class SpreadModel:
    """The spreading of a model's values and batches, in one rank.

    Args:
        model: The model.
        settings: The mesh and the layout.
        joined: The ranks' collectives.
    """

    def __init__(self, model: object, settings: strategies.Sharded, joined: World) -> None:
        self._model = weakref.ref(model)
        self._settings = settings
        self._world = joined
        self._parts = settings.locate_batch(joined.rank, joined.size)[1]
        self._originals: dict[str, Any] = {}
        #: The functions that replace Keras's for a step, by kind.
        self._functions: dict[str, Any] = {}
        #: The sharding of each weight, by the ``id`` of its object; empty as long as nothing is spread.
        self._known: dict[int, NamedSharding] = {}
        #: The loader in use, and the number of its batches so far. `predict` uses no loader.
        self._data: loaders.PreparedArrays | None = None
        self._step = 0
        self.account = spread_usage.Account(settings)

    def _get_model(self) -> Any:
        model = self._model()
        assert model is not None, "it computes"
        return model

    # --- how values are spread ----------------------------------------------------------------------------------------

    @functools.cached_property
    def _mesh(self) -> meshes.Mesh:
        """The mesh of the ranks. All of them make it together."""
        kind = jax.local_devices()[0].platform.upper()
        return meshes.create_distributed_mesh(self._settings.mesh, device_type=kind, framework="jax")

    @functools.cached_property
    def _whole(self) -> NamedSharding:
        """The layout of values that each rank has whole."""
        return NamedSharding(backend.get_mesh(self._mesh), PartitionSpec())

    @functools.cached_property
    def _cut(self) -> NamedSharding:
        """The layout of a batch of which each rank has its own rows."""
        axes = spreading.list_batch_dims(self._settings)
        return NamedSharding(backend.get_mesh(self._mesh), PartitionSpec(tuple(axes) or None))

    def _plan(self, model: Any) -> None:
        weights = list(model.weights)
        shapes = {weight.path: tuple(weight.shape) for weight in weights}
        layouts = spreading.plan(self._settings, self._mesh, shapes)
        self._known = {id(weight): backend.find_sharding(layouts[weight.path]) for weight in weights}
        self.account.predict(
            (layouts[one.path], one.shape, np.dtype(one.dtype).itemsize, one.trainable) for one in weights
        )

    def _find(self, variable: object) -> NamedSharding:
        """Return the sharding of a model's or a metric's variable."""
        return self._known.get(id(variable), self._whole)

    def _find_all(self, group: str) -> list[NamedSharding]:
        model = self._get_model()
        if group == "optimizer":
            return [self._find_beside(model, variable) for variable in model.optimizer.variables]
        return [self._find(variable) for variable in getattr(model, group)]

    def _find_beside(self, model: Any, variable: Any) -> NamedSharding:
        """Return the sharding of an optimizer's variable: that of the weight to which it belongs."""
        owners = [
            weight
            for weight in model.trainable_variables
            if tuple(weight.shape) == tuple(variable.shape)
            and variable.name.startswith(f"{weight.path.replace('/', '_')}_")
        ]
        return self._find(max(owners, key=lambda weight: len(weight.path))) if owners else self._whole

    def _is_placed(self, value: object) -> bool:
        sharding = getattr(value, "sharding", None)
        return isinstance(sharding, NamedSharding) and sharding.mesh == self._whole.mesh

    # --- calls from `fit` of a prepared model -------------------------------------------------------------------------

    def begin(self) -> None:
        """Spread all values that are not spread, with rank 0's weights and optimizer's variables. All ranks call it."""
        model = self._get_model()
        self._check_compiled(model)
        variables.attach(model)
        if not self._known:
            self._plan(model)
        self._share(model.variables, self._find)
        optimizer = model.optimizer if model.compiled else None
        if optimizer is not None:
            if not optimizer.built:
                optimizer.build(model.trainable_variables)
            self._share(optimizer.variables, functools.partial(self._find_beside, model))
            self.account.optimizer = spread_usage.count_kept([variable.value for variable in optimizer.variables])

    def _share(self, given: Sequence[Any], find: Callable[[Any], NamedSharding]) -> None:
        for variable in given:
            if self._is_placed(variable.value):
                continue
            array = np.array(variable.value)
            if self._world.size > 1:
                self._world.broadcast(array.reshape(-1).view(np.uint8))  # as bytes, for any dtype
            variable.assign(backend.place(array, find(variable)))

    @staticmethod
    def _check_compiled(model: Any) -> None:
        if model.compiled and (model.run_eagerly or not model.jit_compile):
            raise ValueError(
                f"With Sharded a step is one compiled program over all ranks, but the model {model.name!r} is compiled "
                "with run_eagerly=True or jit_compile=False. Leave that argument out."
            )
        if model.compiled and model.steps_per_execution > 1:
            raise ValueError(
                f"The model is compiled with steps_per_execution={model.steps_per_execution}, but with Sharded each "
                "step is executed alone. Leave steps_per_execution out."
            )

    def begin_pass(self, data: object, caller: str) -> None:
        """Note the data that is read next, from its beginning."""
        if not isinstance(data, loaders.PreparedArrays):
            raise TypeError(
                f"With Sharded {caller}() takes the result of prepare_arrays(), which gives each rank its rows by the "
                f"mesh, but received {type(data).__name__}. Write {caller}(prepare_arrays(x, y, batch_size=...))."
            )
        self._data, self._step = data, 0

    def begin_epoch(self) -> None:
        """Note that the next batch is the first of the data."""
        self._step = 0

    def end_pass(self) -> None:
        """Turn the metrics, which cover all ranks' rows, into this rank's own values, for computing with them."""
        for metric in self._get_model().metrics:
            for variable in metric.variables:
                if self._is_placed(variable.value):
                    variable.assign(np.asarray(variable.value))

    # --- the methods that are replaced --------------------------------------------------------------------------------

    def attach(self) -> None:
        """Replace the methods."""
        model = self._get_model()
        replaced: dict[str, object] = {
            "evaluate": self._evaluate,
            "predict": self._predict,
            "get_weights": self._get_weights,
            "get_state_tree": self._get_state_tree,
            "train_on_batch": functools.partial(self._refuse, "train_on_batch", "fit"),
            "test_on_batch": functools.partial(self._refuse, "test_on_batch", "evaluate"),
        }
        for name in _WRITERS:
            replaced[name] = functools.partial(self._write, name)
        for kind in _GROUPS:
            replaced[f"make_{kind}_function"] = functools.partial(self._make_function, kind)
            replaced[f"{kind}_step"] = functools.partial(self._take_step, kind)
        for name, method in replaced.items():
            self._originals[name] = getattr(model, name)
            object.__setattr__(model, name, method)

    def _make_function(self, kind: str, force: bool = False) -> None:
        model, name = self._get_model(), f"{kind}_function"
        self._originals[f"make_{name}"](force)
        made = getattr(model, name)
        if made is self._functions.get(kind):  # Keras has kept the replaced function
            return

        def function(state: Any, iterator: Iterator[object]) -> object:
            batch = self._place_batch(next(iterator), kind)
            if kind == "train":
                self.account.count_step()
            return made(self._place_state(state, kind), iter([batch]))

        self._functions[kind] = function
        setattr(model, name, function)

    def _place_state(self, state: Sequence[Sequence[object]], kind: str) -> tuple[list[object], ...]:
        return tuple(self._place_group(values, group) for values, group in zip(state, _GROUPS[kind], strict=True))

    def _place_group(self, values: Sequence[object], group: str) -> list[object]:
        if all(self._is_placed(value) for value in values):  # so it is from the second step of an epoch on
            return list(values)
        return [
            value if self._is_placed(value) else backend.place(value, sharding)
            for value, sharding in zip(values, self._find_all(group), strict=True)
        ]

    def _place_batch(self, batch: object, kind: str) -> object:
        is_whole = True
        if kind != "predict":  # which a callback may call between two batches of `fit`
            is_whole = self._data is None or self._data.is_whole(self._step)
            self._step += 1

        def place(array: object) -> object:
            if array is None:
                return None
            array = np.asarray(array)
            if is_whole:
                return backend.place(array, self._whole)
            shape = (array.shape[0] * self._parts, *array.shape[1:])
            part = jax.device_put(array, jax.local_devices()[0])
            return jax.make_array_from_single_device_arrays(shape, self._cut, [part])

        return keras.tree.map_structure(place, batch)

    def _take_step(self, kind: str, state: object, data: object) -> object:
        """Take a step, and constrain how its results are spread. Called while JAX traces the step."""
        found, changed = self._originals[f"{kind}_step"](state, data)
        found = jax.tree_util.tree_map(self._keep_whole, found)
        if kind == "predict":  # of the state, it returns only the non-trainable variables
            return found, self._constrain(changed, "non_trainable_variables")
        return found, tuple(
            self._constrain(values, group) for values, group in zip(changed, _GROUPS[kind], strict=True)
        )

    def _keep_whole(self, value: object) -> object:
        return jax.lax.with_sharding_constraint(value, self._whole) if isinstance(value, jax.Array) else value

    def _constrain(self, values: Sequence[object], group: str) -> list[object]:
        return [
            jax.lax.with_sharding_constraint(value, sharding)
            for value, sharding in zip(values, self._find_all(group), strict=True)
        ]

    def _evaluate(self, x: object = None, *args: object, **kwargs: object) -> object:
        before = self._data, self._step
        x = loaders.open_evaluation(x)
        self.begin_pass(x, "evaluate")
        self.begin()
        try:
            return self._originals["evaluate"](x, *args, **kwargs)
        finally:
            self._data, self._step = before

    def _predict(self, x: object, *args: object, **kwargs: object) -> object:
        if isinstance(x, loaders.PreparedArrays):
            raise TypeError(
                "With Sharded predict() takes rows that are the same in all ranks, and returns the predictions for all "
                "of them, but received the result of prepare_arrays(). Write predict(x)."
            )
        self.begin()
        return self._originals["predict"](x, *args, **kwargs)

    def _get_weights(self) -> list[object]:
        """Return whole weights. All ranks call it."""
        model = self._get_model()
        variables.attach(model)
        return [variables.read(weight) for weight in model.weights]

    def _get_state_tree(self, *args: object, **kwargs: object) -> object:
        """Return whole variables. All ranks call it."""
        with _hold_whole(self._get_model()):
            return self._originals["get_state_tree"](*args, **kwargs)

    def _write(self, name: str, filepath: object, *args: object, **kwargs: object) -> object:
        """Write a whole model. All ranks call it."""
        writer = self._originals[name]
        return _write(self._get_model(), self._world, writer, filepath, *args, **kwargs)

    def _refuse(self, name: str, instead: str, *args: object, **kwargs: object) -> object:
        raise TypeError(
            f"With Sharded {name}() does not know which rows the other ranks have. Call {instead}() with the result of "
            "prepare_arrays()."
        )


# Keras writes values as numpy arrays, which a rank cannot make alone from its parts. So all ranks call ``save``,
# ``save_weights``, ``export`` and ``get_state_tree``; a ``ModelCheckpoint`` in each rank does so. The ranks put the
# parts together, Keras does its work, and then the model gets its parts back.
def _write(
    model: Any, joined: World, writer: Callable[..., object], filepath: object, *args: object, **kwargs: object
) -> Any:
    """Write a whole model by a method of Keras. Of ranks with the same path on the same machine, the first writes.

    All ranks call it. It returns when all have written, so that each finds the file.
    """
    where = str(Path(filepath).absolute() if isinstance(filepath, (str, os.PathLike)) else joined.rank)
    place = (socket.gethostname(), where)
    is_first = joined.all_gather_object(place).index(place) == joined.rank
    trouble = returned = None
    try:
        with _hold_whole(model):
            returned = writer(filepath, *args, **kwargs) if is_first else None
    except Exception as error:
        trouble = f"{type(error).__name__}: {error}"
        raise
    finally:
        troubles = joined.all_gather_object(trouble)
    for rank, text in enumerate(troubles):
        if text is not None:
            raise RuntimeError(f"Rank {rank} could not write the model {model.name!r}: {text}")
    return returned


@contextlib.contextmanager
def _hold_whole(model: Any) -> Iterator[None]:
    """Keep each rank's variables whole within a block. All ranks enter it."""
    variables.attach(model)
    optimizer = getattr(model, "optimizer", None)
    given = [*model.variables, *(optimizer.variables if optimizer is not None else ())]
    parts = [(variable, variable.value) for variable in given if variables.is_spread(variable)]
    for variable, _ in parts:
        variable.assign(variables.read(variable))
    try:
        yield
    finally:
        for variable, part in parts:
            variable.assign(part)
