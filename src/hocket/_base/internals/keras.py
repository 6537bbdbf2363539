"""Keras's names, those of Keras 3."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Final

BACKEND_TRAINER: Final = "keras.src.backend.tensorflow.trainer"
"""The module that is loaded when Keras 3 trains on TensorFlow."""

PACKAGE: Final = "keras.src"
"""The package that is loaded with Keras 3 alone."""

CLASSES: Final = rb"(?<!tf_)keras\.(?:src|_tf_keras|api\._tf_keras)[\w.]*"
"""How the classes of Keras 3 are called in a pickle; those of tf-keras are called ``tf_keras.src``."""

LOGS_METHOD: Final = "_get_metrics_result_or_logs"
"""The method of a model that turns the metrics of a pass into its logs."""

DEFAULT_HOOK: Final = "_is_default"
"""The attribute of a callback's methods that nobody has overridden."""


def get_losses() -> Any:
    """Return the module whose `reduce_weighted_values` all losses call."""
    return importlib.import_module("keras.src.losses.loss")


def list_layers(model: Any) -> list[Any]:
    """Return all layers of a model, those in layers included."""
    return list(model._flatten_layers())


def list_metrics(model: Any, logs: object) -> Any:
    """Return a pass's logs as a list, in the order of `Model.metrics_names`."""
    return model._flatten_metrics_in_order(logs)


def uses_weight_decay(optimizer: Any, variable: object) -> bool:
    """Tell whether an optimizer lets a variable decay."""
    return bool(optimizer._use_weight_decay(variable))


def list_stepped(optimizer: object) -> list[Any]:
    """Return the variables that an optimizer was built for; none if it is not built."""
    return list(getattr(optimizer, "_trainable_variables", None) or ())


def have_saved_by(callback: Any, save: Callable[..., None]) -> None:
    """Have a `ModelCheckpoint` call a function in the place of its own that writes, with the epoch, the batch and the
    logs."""
    callback._save_model = save


def look_whether_to_save(callback: Any, epoch: int, batch: int | None, logs: object) -> None:
    """Have a `ModelCheckpoint` remember the best value."""
    callback._should_save_model(epoch, batch, logs, "")


def call_in_order(callbacks: Any) -> None:
    """Have a list of callbacks be told of each batch before the next one, in the thread that trains. Keras decides that
    when the list is made, by the callbacks that it then has."""
    callbacks._async_train = False


def get_first_epoch(model: Any) -> int | None:
    """Return the number of the epoch that `fit` begins with, if that is not the one that it was given."""
    found: int | None = model._initial_epoch
    return found


def set_first_epoch(model: Any, epoch: int | None) -> None:
    """Have `fit` begin with another epoch."""
    model._initial_epoch = epoch
