"""Makes all ranks train a Keras model as one, while ``fit`` stays the user's loop.

The model stays the same object of the same class, so it is saved, cloned and inspected as before. Some methods are
replaced in this one object: ``fit`` keeps the sample ledger and meets the other ranks, and ``train_step`` notes the
number of rows in a batch. Their names are public except ``_get_metrics_result_or_logs``, which ends an epoch and an
evaluation on each backend. Gradients and losses are exchanged where all of Keras's pass: `steps`.

`exchanges` has the work of a step, and `bridges` its costs; `followers` has the callbacks around the user's.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
import warnings
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, final

import keras
import numpy as np

from hocket._base.internals import keras as keras_internals
from hocket.train import strategies
from hocket.train.frameworks.keras import (
    evaluation,
    exchanges,
    followers,
    framework,
    loaders,
    rank_state,
    sharding,
    steps,
    variables,
)
from hocket.train.rank import equality
from hocket.train.strategies import strategy

_COUNTED: Final = re.compile(r"_\d+(?=[/_]|$)")


def prepare_model(model: object) -> Any:
    """Make all ranks train a model as one, with the trainer's strategy: by default with the mean gradient of all ranks'
    rows.

    All ranks get rank 0's weights, at once and when ``fit`` begins. Each step averages the gradients inside the
    compiled step, weighted by rows; where a loss has a mask, ignored classes or weights, by the entries of its mean. So
    n ranks take the step of one process with n times the batch. That holds for each optimizer that steps the model's
    variables, and for ``train_on_batch`` and a user's own loops too. At the end of an epoch, and of ``evaluate``,
    metrics are those of all ranks' rows, so callbacks decide the same everywhere. The logs of a single batch in ``fit``
    are the rank's own. Weights that are not trained (BatchNormalization's) are averaged at the end of an epoch, or
    combined as their ``aggregation`` says.

    All ranks must take the same number of steps, as they do with `prepare_arrays`.

    Args:
        model: Any ``keras.Model``, compiled or not yet. It must have its variables by the time of ``fit``: begin it
            with ``keras.Input``, or use `prepare_arrays`.

    Returns:
        The same object.

    Raises:
        TypeError: `model` is no model of Keras 3.
        ValueError: The model was prepared already, is a second one under a strategy that allows only one, or is
            compiled with ``jit_compile=True`` on TensorFlow, whose XLA cannot leave a step.
        RuntimeError: The caller is outside a training function, or the ranks are not joined.

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
            f"prepare_model() received the model {model.name!r} twice. Prepare it once, and use the returned model."
        )
    prepared = _Prepared(model, state)
    prepared.attach()
    state.prepared.append(prepared)
    if model.built and model.variables:
        prepared.share_weights()
    return model


def synchronize() -> None:
    """Make the models of all ranks equal, if the strategy lets them differ between steps.

    All ranks must call it at the same step.

    ``fit`` calls it at the end of each epoch. With `AllReduce` it combines weights that layers keep without training
    them, such as the means of BatchNormalization: call it after a loop of your own, before an evaluation.

    Raises:
        RuntimeError: The caller is outside a training function.
    """
    state = framework.FRAMEWORK.get_state("synchronize")
    for prepared in state.prepared:
        if prepared.model is not None:
            prepared.synchronize()


def _refuse_joint_layers(model: Any) -> None:
    """Raise for layers that are to compute with the rows of all ranks, as they would under Keras's own replicas."""
    for layer in keras_internals.list_layers(model):
        if isinstance(layer, keras.layers.BatchNormalization) and layer.synchronized:
            raise ValueError(
                f"BatchNormalization {layer.name!r} of the model {model.name!r} has synchronized=True, but in a "
                "prepared model a layer sees only the rows of its own rank. Leave synchronized out: each rank then "
                "takes the means of its own rows, and the means that are kept for evaluation are averaged over the "
                "ranks."
            )


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
        #: The layouts that spread the model over the ranks; None unless the strategy is `Sharded`.
        self._spread: Any = sharding.open_model(self.runtime, model, state.world)
        #: The exchange of gradients and losses.
        self.exchange = exchanges.Exchange(model, self.runtime, state.world)
        self._originals: dict[str, Any] = {}
        self._watch = state.watch
        self._before_waiting = state.before_waiting
        self._is_in_epoch = False
        #: Whether the strategy has begun, for ``train_on_batch``.
        self._has_begun = False
        #: The layers' counts when the ranks last had them in common, and whether they have the layers' state in common
        #: now.
        self._counts: Sequence[Any] = ()
        self._is_level = True
        #: Whether the ranks read the same rows in this pass; None if unknown. ``fit`` may know.
        self._is_same: bool | None = None
        self._reads_parts = False
        #: The optimizer of the first step, if the strategy takes the steps.
        self._stepper: Any = None
        self._has_warned = False

    @property
    def model(self) -> Any:
        """The model; None if it is gone."""
        return self._model()

    def synchronize(self) -> None:
        """Make the model equal in all ranks."""
        self.runtime.synchronize(self._host_model)
        if self._spread is None:
            evaluation.level_state(self.model, self._world, self._counts)
            self._note_level()

    def list_alike(self, prefix: str) -> Iterator[equality.Equal]:
        """Yield the tensors that should be equal in all ranks now, for `equality`."""
        model, alike = self.model, self.runtime.alike
        if model is None or not alike or not self.exchange.is_equal:
            return
        variables.attach(model)
        given: dict[str, Sequence[Any]] = {}
        if strategies.Alike.PARAMETERS in alike:
            given["parameter"] = model.trainable_variables
        if strategies.Alike.BUFFERS in alike and self._is_level and self.exchange.was_led:
            given["buffer"] = evaluation.list_states(model)
        if strategies.Alike.OPTIMIZERS in alike:
            given["optimizer"] = [one for optimizer in self.exchange.list_optimizers() for one in optimizer.variables]
        for kind, found in given.items():
            for number, variable in enumerate(found):
                name = _COUNTED.sub("", variable.path)  # each process has Keras number names differently
                yield equality.Equal(kind, f"{prefix}{name} (number {number})", variables.read(variable))

    def _note_level(self) -> None:
        variables.attach(self.model)
        self._counts = [variables.read(one) for one in evaluation.list_counts(self.model)]
        self._is_level = True

    # --- the methods that are replaced --------------------------------------------------------------------------------

    def attach(self) -> None:
        """Replace the methods."""
        model = self.model
        replaced: dict[str, object] = {
            "compile": self._compile,
            "fit": self._fit,
            keras_internals.LOGS_METHOD: self._end_pass,
        }
        if self._spread is None:
            replaced |= {
                "train_step": self._train_step,
                "compute_loss": self._compute_loss,
                "evaluate": self._evaluate,
                "train_on_batch": functools.partial(self._run_on_batch, "train_on_batch"),
                "test_on_batch": functools.partial(self._run_on_batch, "test_on_batch"),
            }
            replaced |= {name: functools.partial(self._write, name) for name in ("save", "save_weights")}
        if self._spread is None and self._world.size > 1:
            _refuse_joint_layers(model)
        for name, method in replaced.items():
            self._originals[name] = getattr(model, name)
            object.__setattr__(model, name, method)  # Keras's own would track the method as a part of the model
        if self._spread is not None:
            self._spread.attach()
        steps.install()
        if model.compiled:
            self._check_compiled(model)

    def _compile(self, *args: object, **kwargs: object) -> object:
        returned = self._originals["compile"](*args, **kwargs)
        self._check_compiled(self.model)
        return returned

    def _check_compiled(self, model: Any) -> None:
        if not self.runtime.averages_gradients:
            return
        if keras.backend.backend() == "tensorflow" and model.jit_compile:
            if model.get_compile_config().get("jit_compile") is True:
                raise ValueError(
                    "The model is compiled with jit_compile=True, but a step that TensorFlow compiles with XLA cannot "
                    "be interrupted to average its gradients. Leave jit_compile out: the step is then a tf.function."
                )
            model.jit_compile = False

    def _train_step(self, *args: Any) -> object:
        """Take a step, or trace one. Keras calls this; the batch is the last argument."""
        with self.exchange.step_on(args[-1]):
            return self._originals["train_step"](*args)

    def _compute_loss(self, *args: object, **kwargs: object) -> object:
        with steps.compute_compiled():
            return self._originals["compute_loss"](*args, **kwargs)

    def _run_on_batch(self, name: str, *args: object, **kwargs: object) -> object:
        """Take a step on, or test, one batch of each rank, together with the other ranks."""
        model, trains = self.model, name == "train_on_batch"
        bound = inspect.signature(self._originals[name]).bind(*args, **kwargs)
        bound.apply_defaults()
        is_dict, bound.arguments["return_dict"] = bound.arguments["return_dict"], True  # logs are merged by name
        steps.install()
        if trains and not self._has_begun:
            self._check_built(bound.arguments["x"])
            self.share_weights()
            self.begin_fit()
            self._has_begun = True
        elif trains:
            self._check_stepper()
        elif not self._is_level:
            self.synchronize()
        self._is_same = False
        self._is_level = self._is_level and not trains
        if trains and self.runtime.takes_steps:
            self.runtime.begin_epoch(self._host_model)  # reads the weights that the other ranks have changed since
        with self.exchange.lead():
            logs = self._originals[name](*bound.args, **bound.kwargs)
        if trains:
            self.after_steps(1)
        logs = self._originals[keras_internals.LOGS_METHOD](self._merge(logs))
        logs = {name: float(value) if np.ndim(value) == 0 else value for name, value in logs.items()}
        return logs if is_dict else keras_internals.list_metrics(model, logs)

    def _evaluate(self, *args: object, **kwargs: object) -> object:
        original = self._originals["evaluate"]
        bound = inspect.signature(original).bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        given["x"] = loaders.open_evaluation(given["x"])
        callbacks = given["callbacks"]
        if not isinstance(callbacks, keras.callbacks.CallbackList):
            chosen = followers.select(keras.tree.flatten(callbacks or []), writes=self._world.rank == 0)
            given["callbacks"] = chosen
        if not self._is_level and not self._is_in_epoch:
            self.synchronize()
        before = self._is_in_epoch, self._is_same  # a callback may evaluate after a batch
        self._is_in_epoch, self._is_same = False, self._find_same(given["x"], given["y"])
        if self._is_same is not True:
            self._warn_of_sums()
        self.exchange.begin_evaluation()
        try:
            return original(*bound.args, **bound.kwargs)
        finally:
            self._is_in_epoch, self._is_same = before

    def _warn_of_sums(self) -> None:
        """Warn once of losses that an evaluation does not add up over the ranks."""
        sums = [
            type(loss).__name__
            for loss in keras.tree.flatten(self.model.loss)
            if isinstance(loss, keras.losses.Loss) and loss.reduction == "sum"
        ]
        if sums and self._world.size > 1 and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"{sums[0]}(reduction='sum') of {self.model.name!r} is summed over each rank's batch. fit() shows the "
                f"sum of all ranks' losses, but evaluate() and val_loss show the mean of the {self._world.size} ranks' "
                "sums. To compare means, leave reduction out.",
                stacklevel=3,
            )

    def _find_same(self, *data: object) -> bool | None:
        """Return whether all ranks have the same rows; None if unknown before reading. All ranks call it."""
        if self._world.size == 1 or isinstance(data[0], loaders.PreparedArrays):
            return False
        digests = self._world.all_gather_object(evaluation.digest_rows(data))
        return None if None in digests else bool(digests == digests[:1] * self._world.size)

    def _write(self, name: str, filepath: Any, *args: Any, **kwargs: Any) -> object:
        """Write beside the path and rename, so that ranks may write the same model to the same path."""
        original = self._originals[name]
        path = Path(filepath if isinstance(filepath, str | os.PathLike) else "")
        overwrites = kwargs.get("overwrite", args[0] if args else True)
        if path.suffix not in (".keras", ".h5") or "://" in str(filepath) or not (overwrites or not path.exists()):
            return original(filepath, *args, **kwargs)
        beside = path.with_name(f".{self._world.rank}-{os.getpid()}-{path.name}")
        try:
            returned = original(str(beside), *args, **kwargs)
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)
        return returned

    def _end_pass(self, logs: object) -> object:
        """Merge the metrics of all steps. Keras calls this after the last step of an epoch or an evaluation."""
        if self._is_in_epoch:
            self._is_in_epoch = False
            self.synchronize()
        if self._spread is None:
            logs = self._merge(logs)
        else:
            self._spread.end_pass()
        return self._originals[keras_internals.LOGS_METHOD](logs)

    def _merge(self, logs: Any) -> Any:
        """Replace metrics, and numbers that a step has returned, by those of all ranks."""
        if self._world.size == 1:
            return logs
        for leave in self._before_waiting:
            leave()  # ends a step that this rank has begun: another rank may wait for it
        model = self.model
        is_own = isinstance(logs, dict) and set(logs) != set(model.get_metrics_result())  # a user's own train_step
        before = evaluation.read_results(model) if is_own else {}
        evaluation.merge_metrics(model, self._world, is_same=self._is_same)
        if not is_own:
            return logs
        return evaluation.merge_logs(logs, before, evaluation.read_results(model), self._world, self.exchange.last_rows)

    def _fit(self, *args: object, **kwargs: object) -> object:
        original = self._originals["fit"]
        bound = inspect.signature(original).bind(*args, **kwargs)
        bound.apply_defaults()
        given = dict(bound.arguments)
        given["validation_data"] = loaders.open_evaluation(given["validation_data"])
        data = given["x"] if isinstance(given["x"], loaders.PreparedArrays) else None
        steps.install()
        self._has_begun, self._reads_parts = True, data is not None
        if self._spread is not None:
            self._spread.begin_pass(given["x"], "fit")
        elif self._find_same(given["x"], given["y"]):
            warnings.warn(
                f"fit() of {self.model.name!r} received the same rows in all {self._world.size} ranks, so the ranks "
                "repeat each other's work. Write fit(prepare_arrays(x, y, batch_size=...)) to share them out.",
                stacklevel=2,
            )
        follower = followers.Follower(self, data)
        with self.exchange.lead():
            if data is None:
                self._make_ready(given["x"])
                return original(**{**given, "callbacks": self._surround(given["callbacks"], follower)})
            return self._fit_arrays(original, given, data, follower)

    def _surround(self, callbacks: Any, follower: followers.Follower) -> Any:
        last = followers.Closer(self, self._world, is_joint=not self.runtime.takes_steps)
        writes = self._world.rank == 0 or self._spread is not None
        return followers.surround(callbacks, follower, last, self.model, writes=writes)

    def _fit_arrays(
        self, original: Any, given: dict[str, Any], data: loaders.PreparedArrays, follower: followers.Follower
    ) -> object:
        model = self.model
        given = {**given, "shuffle": False}  # Keras would shuffle the batches, in each rank differently
        self._check_steps(model, data, given.pop("steps_per_epoch"))
        data.begin_training()
        first, last = given["initial_epoch"], given["epochs"]
        try:
            self._make_ready(data)
            given["callbacks"] = self._surround(given["callbacks"], follower)
            if not data.is_partial or first + 1 >= last:
                return original(**given)
            # Keras takes equally many steps in each epoch of a call. So the rest of an epoch is its own call; callbacks
            # see one call.
            callbacks = followers.OneCall(
                given["callbacks"],
                add_history=True,
                add_progbar=given["verbose"] != 0,
                verbose=given["verbose"],
                epochs=last,
                steps=data.steps_left,
                model=model,
            )
            with followers.without_final_values(model.optimizer):
                history = original(**{**given, "callbacks": callbacks, "epochs": first + 1})
            callbacks.is_last = True
            if model.stop_training:
                callbacks.on_train_end(callbacks.last_logs)
                return history
            data.begin_training()  # Keras reads the number of steps before callbacks hear of the epoch
            return original(**{**given, "callbacks": callbacks, "initial_epoch": first + 1})
        finally:
            data.end_training()

    def _check_steps(self, model: Any, data: loaders.PreparedArrays, in_epoch: object) -> None:
        if in_epoch not in (None, data.steps_per_epoch):
            raise ValueError(
                f"fit() received steps_per_epoch={in_epoch!r}, but an epoch of prepared arrays has all rows, in "
                f"{data.steps_per_epoch} steps, and the position in the data is counted by that. Leave steps_per_epoch "
                "out. To report or save more often, use a callback after a batch, such as "
                "ReportCheckpointCallback(checkpoint_on='train_batch_end')."
            )
        steps = model.steps_per_execution
        if steps > 1 and (data.is_partial or self._world.size > 1):
            raise ValueError(
                f"The model is compiled with steps_per_execution={steps}, but the position in prepared arrays is known "
                "after each step only if each step is executed alone. Leave steps_per_execution out."
            )

    def _make_ready(self, data: object) -> None:
        self._check_built(data)
        if self._spread is not None:
            self._spread.begin()

    def _check_built(self, data: object) -> None:
        """Create the variables, if they are missing, before rank 0's are copied."""
        model = self.model
        if model.variables and (model.built or all(layer.built for layer in model.layers)):
            return
        batch, trouble = data[0][0] if isinstance(data, loaders.PreparedArrays) else data, ""
        if evaluation.digest_rows(batch) is not None:
            rows = slice(None) if isinstance(data, loaders.PreparedArrays) else slice(1)
            try:
                model(keras.tree.map_structure(lambda array: keras.ops.convert_to_tensor(array[rows]), batch))
            except NotImplementedError as error:
                trouble = f" The model cannot be called: {str(error).splitlines()[0]}"
            else:
                return
        if self._world.size > 1:
            raise ValueError(
                f"The model {model.name!r} does not have all of its variables yet, so the ranks cannot begin with the "
                "same values. Begin the model and its parts with keras.Input((...)), or call build(...) before "
                f"fit().{trouble}"
            )

    # --- calls from the follower --------------------------------------------------------------------------------------

    def share_weights(self) -> None:
        """Give all ranks rank 0's weights, and its optimizer's."""
        model = self.model
        self.exchange.note_equal()
        if self._spread is None and self._world.size > 1 and not self.runtime.has_begun:
            variables.attach(model)
            optimizer = getattr(model, "optimizer", None)
            if optimizer is not None and any(self._world.all_gather_object(optimizer.built)) and not optimizer.built:
                optimizer.build(model.trainable_variables)  # rank 0's callbacks have restored its own
            theirs = list(optimizer.variables) if optimizer is not None and optimizer.built else []
            variables.broadcast([*model.trainable_variables, *evaluation.list_states(model), *theirs], self._world)
        if self._spread is None:
            self._note_level()

    def begin_fit(self) -> None:
        """Begin the strategy with rank 0's weights, because callbacks may have set others."""
        model = self.model
        if self.runtime.takes_steps and model.optimizer is not None and not model.optimizer.built:
            # On TensorFlow Keras builds it in its first step. This one takes no steps, but checkpoints need its count.
            model.optimizer.build(model.trainable_variables)
        self._check_stepper()
        self.share_weights()
        self.runtime.begin(self._host_model)

    def _check_stepper(self) -> None:
        """Check that the servers step as the model's optimizer would."""
        if not self.runtime.takes_steps:
            return
        optimizer = self.model.optimizer
        if self._stepper is None:
            self._stepper = optimizer
        elif optimizer is not self._stepper:
            raise ValueError(
                f"The model {self.model.name!r} was compiled with {type(optimizer).__name__} {optimizer.name!r} after "
                f"it had trained with {type(self._stepper).__name__} {self._stepper.name!r}, but with ParameterServer "
                "the servers keep the moments of the first optimizer. Compile with the same optimizer object again "
                "(its learning_rate may change); train each phase in a trainer of its own, from the checkpoint of the "
                "phase before; or use AllReduce()."
            )

    def begin_epoch(self) -> None:
        """Note that an epoch begins."""
        self._is_level, self._is_in_epoch = False, True
        self._is_same = False if self._reads_parts else None
        if self._spread is not None:
            self._spread.begin_epoch()
        self.runtime.begin_epoch(self._host_model)

    def list_stepped(self) -> list[Any]:
        """Return the variables of model and optimizer that the next step changes, if the rank takes it alone. The
        number of steps is left out: it gives all ranks the same learning rate."""
        if not self.runtime.steps_alone:
            return []
        found = list(self.model.trainable_variables)
        for optimizer in self.exchange.list_optimizers():
            counts = () if optimizer.gradient_accumulation_steps else (optimizer.iterations,)
            found += [one for one in optimizer.variables if not any(one is count for count in counts)]
        return found

    def after_steps(self, count: int) -> None:
        """Note that steps were taken."""
        self.runtime.after_steps(self._host_model, count)
        for _ in range(count):
            self._watch.count_step()

    def end_epoch(self, number: int) -> None:
        """Note that callbacks have ended an epoch."""
        self._watch.look_at_epoch(number)  # at once: in fit() all ranks take the same number of steps
