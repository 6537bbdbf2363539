"""A Keras model on JAX that is spread over a mesh of the ranks: one program over the devices of all of them.

Keras on JAX compiles a step as a function from the variables' values to the new ones. If these values, and the batch,
are global arrays, the step is a program of all ranks together: its loss is the mean over the rows of the whole batch,
and metrics, dropout and normalisation see that batch too, as in one process. XLA finds the collectives. So what is done
here, around Keras's own functions:

- before a step, values that are not yet spread are: a weight as its layout says, a variable of the optimizer as the
  weight whose path its name begins with, all else replicated. So whatever is assigned in between, by a callback or from
  a checkpoint, may be whole.
- in the compiled step (`train_step` and its siblings) the new values are constrained to be spread in the same way.
- batches come from `prepare_arrays`, each rank with its rows. The last one of an epoch may have rows that the ranks
  cannot share equally, and a global array has equal parts. Then each rank reads all of them and the array is
  replicated: more work in one step, but no row that counts twice and none that is filled in, for any loss or metric.

Keras's own ``keras.distribution`` is not used: it makes variables spread from the beginning, with values that all ranks
must draw alike, and gives all batches the same layout. No part of it is set, so other models are as they were.

Who reads a spread value as a whole, reads it with all ranks: `hocket.train.frameworks.keras.variables.read`.
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
"""Of what a step's state consists, in Keras's order."""

_WRITERS: Final = ("save", "save_weights", "export")
"""Methods of a Keras model whose first argument is the path that they write to."""


@final
class SpreadModel:
    """Spreads a model's values and batches, in one rank.

    Args:
        model: The model.
        settings: The mesh, and what is cut.
        joined: The ranks.
    """

    def __init__(self, model: object, settings: strategies.Sharded, joined: World) -> None:
        self._model = weakref.ref(model)
        self._settings = settings
        self._world = joined
        self._parts = settings.locate_batch(joined.rank, joined.size)[1]
        self._originals: dict[str, Any] = {}
        #: The functions that Keras calls for a step, by kind, as they are replaced.
        self._functions: dict[str, Any] = {}
        #: How each weight is spread, by the number of its object; empty as long as nothing is.
        self._known: dict[int, NamedSharding] = {}
        #: The loader in use, and the number of its batches so far. None in `predict`.
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
        """The ranks; made by all of them together."""
        kind = jax.local_devices()[0].platform.upper()
        return meshes.create_distributed_mesh(self._settings.mesh, device_type=kind, framework="jax")

    @functools.cached_property
    def _whole(self) -> NamedSharding:
        """The layout of values that each rank has whole."""
        return NamedSharding(backend.get_mesh(self._mesh), PartitionSpec())

    @functools.cached_property
    def _cut(self) -> NamedSharding:
        """Of a batch of which each rank has its rows."""
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
        """Return how a variable of the model, of its optimizer or of a metric is spread."""
        return self._known.get(id(variable), self._whole)

    def _find_all(self, group: str) -> list[NamedSharding]:
        model = self._get_model()
        if group == "optimizer":
            return [self._find_beside(model, variable) for variable in model.optimizer.variables]
        return [self._find(variable) for variable in getattr(model, group)]

    def _find_beside(self, model: Any, variable: Any) -> NamedSharding:
        """Return how a variable of the optimizer is spread: as the weight that it belongs to."""
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

    # --- what `fit` of a prepared model calls -------------------------------------------------------------------------

    def begin(self) -> None:
        """Spread what is not: weights and the optimizer's variables are rank 0's then. All ranks call it."""
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
                self._world.broadcast(array.reshape(-1).view(np.uint8))
            variable.assign(backend.place(array, find(variable)))

    @staticmethod
    def _check_compiled(model: Any) -> None:
        if model.compiled and (model.run_eagerly or not model.jit_compile):
            raise ValueError(
                f"With Sharded a step is one compiled program over all ranks, but the model {model.name!r} is "
                "compiled with run_eagerly=True or jit_compile=False. Leave that out."
            )
        if model.compiled and model.steps_per_execution > 1:
            raise ValueError(
                f"The model is compiled with steps_per_execution={model.steps_per_execution}, but with Sharded each "
                "step is executed alone. Leave it out."
            )

    def begin_pass(self, data: object, caller: str) -> None:
        """Note what is read next, from its beginning."""
        if not isinstance(data, loaders.PreparedArrays):
            raise TypeError(
                f"With Sharded {caller}() takes what prepare_arrays() returns, which gives each rank the rows that the "
                f"mesh says, but received {type(data).__name__}. Write {caller}(prepare_arrays(x, y, batch_size=...))."
            )
        self._data, self._step = data, 0

    def begin_epoch(self) -> None:
        """Note that the next batch is the first of what is read."""
        self._step = 0

    def end_pass(self) -> None:
        """Have the metrics, which are those of all ranks' rows, be this rank's own values, to be computed with."""
        for metric in self._get_model().metrics:
            for variable in metric.variables:
                if self._is_placed(variable.value):
                    variable.assign(np.asarray(variable.value))

    # --- the methods that are replaced --------------------------------------------------------------------------------

    def attach(self) -> None:
        """Replace them."""
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
        if made is self._functions.get(kind):
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
        if all(self._is_placed(value) for value in values):  # as from the second step of an epoch on
            return list(values)
        return [
            value if self._is_placed(value) else backend.place(value, sharding)
            for value, sharding in zip(values, self._find_all(group), strict=True)
        ]

    def _place_batch(self, batch: object, kind: str) -> object:
        data = None if kind == "predict" else self._data
        is_whole = data is None or data.is_whole(self._step)
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
        """Called while JAX traces a step: say how its results are spread."""
        found, changed = self._originals[f"{kind}_step"](state, data)
        found = jax.tree_util.tree_map(self._keep_whole, found)
        if kind == "predict":  # of the state it returns the middle alone
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
                "With Sharded predict() takes rows that are the same in all ranks, and returns what is predicted for "
                "all of them, but received what prepare_arrays() returned. Write predict(x)."
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
            f"With Sharded {name}() does not know which rows the other ranks have. Call {instead}() with what "
            "prepare_arrays() returns."
        )


# Keras writes values as numpy arrays, which a rank that has parts of them cannot make alone. So all ranks call
# ``save``, ``save_weights``, ``export`` and ``get_state_tree`` (as those of a run do with a ``ModelCheckpoint`` in
# each): parts are put together, Keras does what it does, and then the model has its parts again.
def _write(
    model: Any, joined: World, writer: Callable[..., object], filepath: object, *args: object, **kwargs: object
) -> Any:
    """Write a whole model by a method of Keras. Of ranks that give the same path on the same machine, the first one
    writes.

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
    """Have each rank's variables be whole within. All ranks enter it."""
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
