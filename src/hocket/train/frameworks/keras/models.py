"""Makes a Keras model train in all ranks as one, while ``fit`` stays the user's loop.

The model stays the object that it is, of the class that it is, so it is saved, cloned and inspected as before. Some of
its methods are replaced, in this one object: ``fit`` keeps the sample ledger and meets the other ranks,
``compute_loss`` notes how many rows a batch has, and the optimizer's ``apply``, through which the gradients of each
backend go, averages them. Where the first three must be looked up by Keras itself the names are public, but for one:
``_get_metrics_result_or_logs``, which ends an epoch and an evaluation on each backend.

What a step does and what it costs is in `bridges`.
"""

from __future__ import annotations

import contextlib
import inspect
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, final

import keras

from hocket.train.frameworks.keras import bridges, evaluation, framework, loaders, rank_state, sharding, variables
from hocket.train.strategies import strategy


def prepare_model(model: object) -> Any:
    """Have a model trained by all ranks as one, with the trainer's strategy: by default with the mean gradient of all
    ranks' rows.

    ``fit`` begins with rank 0's weights in all ranks. Each step averages the gradients, inside the compiled step, by
    the rows of which they are the means. So n ranks take the step of one process with n times the batch. At the end of
    an epoch, and of ``evaluate``, metrics are those of all ranks' rows, and so callbacks decide the same everywhere;
    the logs of a single batch are the rank's own. What a model keeps without training it (BatchNormalization) is
    averaged at the end of an epoch.

    All ranks must take equally many steps, as they do with `prepare_arrays`. Losses are to be means over rows, as
    Keras's are unless told otherwise.

    Args:
        model: Any ``keras.Model``, compiled or not yet. It must have its variables by the time of ``fit``: begin it
            with ``keras.Input``, or use `prepare_arrays`.

    Returns:
        The same object.

    Raises:
        TypeError: It is no model of Keras 3.
        ValueError: It was prepared already, is a second one where the strategy has only one, or is compiled with
            ``jit_compile=True`` on TensorFlow, whose XLA cannot leave a step.
        RuntimeError: It is called outside a training function, or the ranks are not joined.

    Example:
        >>> import tempfile
        >>> import keras, numpy as np
        >>> from hocket import train
        >>> from hocket.train.keras import KerasTrainer, prepare_arrays, prepare_model
        >>> def train_loop():
        ...     x = np.linspace(-1, 1, 64, dtype="float32")[:, None]
        ...     model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        ...     model = prepare_model(model)
        ...     model.compile("adam", "mse")
        ...     history = model.fit(prepare_arrays(x, 3 * x, batch_size=16), epochs=2, verbose=0)
        ...     return len(history.history["loss"])
        >>> trainer = KerasTrainer(
        ...     train_loop,
        ...     scaling_config=train.ScalingConfig(num_workers=0),
        ...     run_config=train.RunConfig(storage_path=tempfile.mkdtemp()),
        ... )
        >>> trainer.fit().return_value
        2
    """
    state = framework.FRAMEWORK.get_state("prepare_model")
    if not isinstance(model, keras.Model):
        raise TypeError(
            "prepare_model() takes a keras.Model of Keras 3, but received "
            f"{type(model).__module__}.{type(model).__name__}. Make it with `import keras`; a model of tf_keras "
            "trains in a TensorflowTrainer, under MultiWorkerMirroredStrategy."
        )
    if any(prepared.model is model for prepared in state.prepared):
        raise ValueError(
            f"prepare_model() received the model {model.name!r} twice. Prepare it once, and use what that returns."
        )
    prepared = _Prepared(model, state)
    prepared.attach()
    state.prepared.append(prepared)
    return model


def synchronize() -> None:
    """Make the models of all ranks equal, if the strategy lets them differ between steps.

    All ranks must call it at the same step.

    ``fit`` does it at the end of each epoch. With `AllReduce` there is nothing to do.

    Raises:
        RuntimeError: It is called outside a training function.
    """
    state = framework.FRAMEWORK.get_state("synchronize")
    for prepared in state.prepared:
        if prepared.model is not None:
            prepared.synchronize()


@final
class _Prepared:
    """A prepared model, in one rank.

    Args:
        model: The model.
        state: The rank's world and strategy.
    """

    def __init__(self, model: object, state: rank_state.RankState) -> None:
        self._model = weakref.ref(model)
        self._world = state.world
        self.runtime = strategy.open_next(state.runtime)
        self._host_model = variables.ModelVariables(model)
        #: What spreads it over the ranks; None with another strategy than `Sharded`.
        self._spread: Any = sharding.open_model(self.runtime, model, state.world)
        self._crossing = bridges.Crossing(self._on_host, None if self.runtime.takes_steps else self._gather)
        self._originals: dict[str, Any] = {}
        #: How many rows the batch has whose step is computed or traced; None if that is not known.
        self._rows: object = None
        #: Steps of this epoch whose gradients have come, and the one whose gradients do not count.
        self._step = 0
        self._filler: int | None = None
        self._is_in_epoch = False

    @property
    def model(self) -> Any:
        """The model; None if it is gone."""
        return self._model()

    def synchronize(self) -> None:
        """Make it equal in all ranks."""
        self.runtime.synchronize(self._host_model)

    # --- on the host, in the middle of a step -------------------------------------------------------------------------

    def _on_host(self, flat: Any, rows: float) -> None:
        """Do the strategy's part; `rows` is the learning rate if that is to take the step."""
        is_filler = self._step == self._filler
        self._step += 1
        if self.runtime.takes_steps:
            strategy.take_step(self.runtime, flat, rows, counts=not is_filler)
        else:
            strategy.average(self.runtime, flat, 0.0 if is_filler else rows)

    def _gather(self, slices: Sequence[strategy.Slices], rows: float) -> Sequence[strategy.Slices]:
        return self.runtime.gather(slices, 0.0 if self._step == self._filler else rows)

    # --- the methods that are replaced --------------------------------------------------------------------------------

    def attach(self) -> None:
        """Replace them."""
        model = self.model
        replaced: dict[str, object] = {
            "compile": self._compile,
            "fit": self._fit,
            "compute_loss": self._compute_loss,
            "_get_metrics_result_or_logs": self._end_pass,
        }
        for name, method in replaced.items():
            self._originals[name] = getattr(model, name)
            object.__setattr__(model, name, method)
        if self._spread is not None:
            self._spread.attach()
        if model.compiled:
            self._hook_optimizer(model)

    def _compile(self, *args: object, **kwargs: object) -> object:
        returned = self._originals["compile"](*args, **kwargs)
        self._hook_optimizer(self.model)
        return returned

    def _hook_optimizer(self, model: Any) -> None:
        if not self.runtime.averages_gradients or model.optimizer is None:
            return
        if keras.backend.backend() == "tensorflow" and model.jit_compile:
            if model.get_compile_config().get("jit_compile") is True:
                raise ValueError(
                    "The model is compiled with jit_compile=True, but TensorFlow's XLA cannot leave a step to "
                    "average its gradients. Leave jit_compile out: the step is a tf.function then."
                )
            model.jit_compile = False
        optimizer = model.optimizer
        original = optimizer.apply

        def apply(grads: Sequence[object], trainable_variables: object = None) -> object:
            rows, self._rows = self._rows, None
            if self.runtime.takes_steps:
                self._take_step(optimizer, list(grads))
                return None
            averaged = self._crossing.average(list(grads), 1.0 if rows is None else rows)
            return original(averaged, trainable_variables)

        object.__setattr__(optimizer, "apply", apply)

    def _take_step(self, optimizer: Any, grads: Sequence[object]) -> None:
        """Have the variables become what the host makes of the gradients."""
        given, rate = self.model.trainable_variables, keras.ops.convert_to_tensor(optimizer.learning_rate)
        self.runtime.choose([number for number, gradient in enumerate(grads) if gradient is not None])
        for variable, value in zip(given, self._crossing.average(grads, rate), strict=True):
            if value is not None:
                variable.assign(value)
        optimizer.iterations.assign_add(1)

    def _compute_loss(self, x: object = None, y: object = None, *args: object, **kwargs: object) -> object:
        leaves = [leaf for leaf in keras.tree.flatten(x) if leaf is not None]
        if leaves and len(leaves[0].shape):
            self._rows = keras.ops.shape(leaves[0])[0]
        return self._originals["compute_loss"](x, y, *args, **kwargs)

    def _end_pass(self, logs: object) -> object:
        """Called by Keras when an epoch or an evaluation has taken its last step, for the metrics of all steps."""
        model = self.model
        if self._is_in_epoch:
            self._is_in_epoch = False
            self.runtime.synchronize(self._host_model)
            if self._spread is None:
                evaluation.level_state(model, self._world)
        if self._spread is None:
            evaluation.merge_metrics(model, self._world)
        else:
            self._spread.end_pass()
        return self._originals["_get_metrics_result_or_logs"](logs)

    def _fit(self, *args: object, **kwargs: object) -> object:
        original = self._originals["fit"]
        bound = inspect.signature(original).bind(*args, **kwargs)
        bound.apply_defaults()
        given = dict(bound.arguments)
        data = given["x"] if isinstance(given["x"], loaders.PreparedArrays) else None
        if self._spread is not None:
            self._spread.begin_pass(given["x"], "fit")
        with self._raise_own_error():
            if data is None:
                return self._fit_once(original, given, _Follower(self, None))
            return self._fit_arrays(original, given, data)

    def _fit_once(self, original: Any, given: dict[str, object], follower: _Follower) -> object:
        self._make_ready(given["x"])
        callbacks = given["callbacks"]
        if isinstance(callbacks, keras.callbacks.CallbackList):
            callbacks.callbacks.insert(0, follower)
            callbacks.set_model(self.model)
        else:
            given = {**given, "callbacks": [follower, *keras.tree.flatten(callbacks or [])]}
        return original(**given)

    def _fit_arrays(self, original: Any, given: dict[str, Any], data: loaders.PreparedArrays) -> object:
        model = self.model
        given = {**given, "shuffle": False}  # Keras would shuffle the order of the batches, in each rank another way
        data.begin_training()
        self._check_steps(model, data)
        follower = _Follower(self, data)
        first, last = given["initial_epoch"], given["epochs"]
        try:
            if not data.is_partial or first + 1 >= last:
                return self._fit_once(original, given, follower)
            # Keras takes equally many steps in each epoch of a call. The rest of one is a call of its own; callbacks
            # see one.
            self._make_ready(data)
            callbacks = _OneCall(
                [follower, *keras.tree.flatten(given["callbacks"] or [])],
                add_history=True,
                add_progbar=given["verbose"] != 0,
                verbose=given["verbose"],
                epochs=last,
                steps=data.steps_left,
                model=model,
            )
            with _without_final_values(model.optimizer):
                history = original(**{**given, "callbacks": callbacks, "epochs": first + 1})
            callbacks.is_last = True
            if model.stop_training:
                callbacks.on_train_end(callbacks.last_logs)
                return history
            data.begin_training()  # Keras asks how many steps there are before callbacks hear of the epoch
            return original(**{**given, "callbacks": callbacks, "initial_epoch": first + 1})
        finally:
            data.end_training()

    def _check_steps(self, model: Any, data: loaders.PreparedArrays) -> None:
        steps = model.steps_per_execution
        if steps > 1 and (data.is_partial or self._world.size > 1):
            raise ValueError(
                f"The model is compiled with steps_per_execution={steps}, but the position in prepared arrays is "
                "known after each step only if each is executed alone. Leave it out."
            )

    def _make_ready(self, data: object) -> None:
        self._check_built(data)
        if self._spread is not None:
            self._spread.begin()

    def _check_built(self, data: object) -> None:
        """Have the variables there before rank 0's are copied."""
        model = self.model
        if model.built and model.variables:
            return
        if isinstance(data, loaders.PreparedArrays):
            model(keras.tree.map_structure(keras.ops.convert_to_tensor, data[0][0]))
        elif self._world.size > 1:
            raise ValueError(
                f"The model {model.name!r} has no variables yet, so the ranks cannot begin with the same. Begin it "
                "with keras.Input((...)), or call model.build(...) before fit()."
            )

    @contextlib.contextmanager
    def _raise_own_error(self) -> Iterator[None]:
        """Raise what a collective has raised, where the backend raises something that quotes it."""
        self._crossing.begin()
        try:
            yield
        except Exception as error:
            own = self._crossing.error
            if own is None or own is error:
                raise
            raise own from error

    # --- what the follower calls --------------------------------------------------------------------------------------

    def begin_fit(self) -> None:
        """Give all ranks rank 0's weights."""
        model = self.model
        if self.runtime.takes_steps and model.optimizer is not None and not model.optimizer.built:
            # On TensorFlow Keras builds it in its first step, which this one never takes; checkpoints need its count.
            model.optimizer.build(model.trainable_variables)
        if self._spread is None and self._world.size > 1 and not self.runtime.has_begun:
            optimizer = model.optimizer
            theirs = list(optimizer.variables) if optimizer is not None and optimizer.built else []
            for given in (model.weights, [one for one in theirs if keras.backend.is_float_dtype(one.dtype)]):
                flat = variables.read_flat(given)
                self._world.broadcast(flat)
                variables.write_flat(given, flat)
        self.runtime.begin(self._host_model)

    def begin_epoch(self, filler: int | None) -> None:
        """Note that an epoch begins, and which of its steps does not count here."""
        self._step, self._filler, self._is_in_epoch = 0, filler, True
        if self._spread is not None:
            self._spread.begin_epoch()
        self.runtime.begin_epoch(self._host_model)

    def after_steps(self, count: int) -> None:
        """Note that steps are taken."""
        self.runtime.after_steps(self._host_model, count)


@final
class _Follower(keras.callbacks.Callback):  # type: ignore[misc]  # Keras is not type-checked
    """Follows ``fit``, before the user's callbacks do."""

    def __init__(self, prepared: _Prepared, data: loaders.PreparedArrays | None) -> None:
        super().__init__()
        self._prepared = prepared
        self._data = data
        self._taken = 0
        self._filler: int | None = None
        self._metrics: list[object] = []

    def on_train_begin(self, logs: dict[str, object] | None = None) -> None:
        self._prepared.begin_fit()

    def on_epoch_begin(self, epoch: int, logs: dict[str, object] | None = None) -> None:
        self._taken = 0
        self._filler = None if self._data is None else self._data.begin_epoch()
        self._prepared.begin_epoch(self._filler)

    def on_train_batch_begin(self, batch: int, logs: dict[str, object] | None = None) -> None:
        if batch == self._filler:
            variables.attach(self.model)
            self._metrics = [variables.read(one) for one in self._list_states()]

    def on_train_batch_end(self, batch: int, logs: dict[str, object] | None = None) -> None:
        count = batch + 1 - self._taken
        self._taken = batch + 1
        if batch == self._filler:
            variables.attach(self.model)
            for state, before in zip(self._list_states(), self._metrics, strict=True):
                state.assign(before)
        if self._data is not None:
            self._data.take(count)
        self._prepared.after_steps(count)

    def on_epoch_end(self, epoch: int, logs: dict[str, object] | None = None) -> None:
        if self._data is not None:
            self._data.end_epoch()

    def _list_states(self) -> list[Any]:
        return [variable for metric in self.model.metrics for variable in metric.variables]


@final
class _OneCall(keras.callbacks.CallbackList):  # type: ignore[misc]  # Keras is not type-checked
    """Callbacks of two calls of ``fit`` that see one."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self.is_last = False
        self.last_logs: Any = None

    def on_train_begin(self, logs: dict[str, object] | None = None) -> None:
        if not self.is_last:
            super().on_train_begin(logs)

    def on_train_end(self, logs: dict[str, object] | None = None) -> None:
        self.last_logs = logs
        if self.is_last:
            super().on_train_end(logs)


@contextlib.contextmanager
def _without_final_values(optimizer: object) -> Iterator[None]:
    """Keep an optimizer from ending a training (with averaged weights, if it keeps them) that goes on."""
    object.__setattr__(optimizer, "finalize_variable_values", lambda var_list: None)
    try:
        yield
    finally:
        object.__delattr__(optimizer, "finalize_variable_values")
