"""Undocumented names of Keras 3."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any, Final

BACKEND_TRAINER: Final = "keras.src.backend.tensorflow.trainer"
"""The module that is loaded when Keras 3 trains on TensorFlow."""

PACKAGE: Final = "keras.src"
"""The package that is loaded with Keras 3 alone."""

CLASSES: Final = rb"(?<!tf_)keras\.(?:src|_tf_keras|api\._tf_keras)[\w.]*"
"""A pattern of the names of Keras 3's classes in a pickle. The names of tf-keras begin with ``tf_keras.src``."""

LOGS_METHOD: Final = "_get_metrics_result_or_logs"
"""The method of a model that turns the metrics of a pass into the pass's logs."""

DEFAULT_HOOK: Final = "_is_default"
"""The attribute that marks a callback's methods which no subclass has overridden."""


def set_torch_device(device: str) -> None:
    """Set the device on which Keras computes on PyTorch, if Keras is loaded. Keras fixes it at import."""
    core: Any = sys.modules.get("keras.src.backend.torch.core")
    if core is not None:
        core.DEFAULT_DEVICE = device


def get_losses() -> Any:
    """Return the module with `reduce_weighted_values`, which all losses call."""
    return importlib.import_module("keras.src.losses.loss")


def list_layers(model: Any) -> list[Any]:
    """Return all layers of a model, layers inside other layers included."""
    return list(model._flatten_layers())


def list_metrics(model: Any, logs: object) -> Any:
    """Return a pass's logs as a list, in the order of `Model.metrics_names`."""
    return model._flatten_metrics_in_order(logs)


def uses_weight_decay(optimizer: Any, variable: object) -> bool:
    """Return whether an optimizer applies weight decay to a variable."""
    return bool(optimizer._use_weight_decay(variable))


def list_stepped(optimizer: object) -> list[Any]:
    """Return the variables for which an optimizer was built; an empty list if it is not built."""
    return list(getattr(optimizer, "_trainable_variables", None) or ())


def have_saved_by(callback: Any, save: Callable[..., None]) -> None:
    """Have a `ModelCheckpoint` call a function with the epoch, the batch and the logs, instead of writing its file."""
    callback._save_model = save


def look_whether_to_save(callback: Any, epoch: int, batch: int | None, logs: object) -> None:
    """Have a `ModelCheckpoint` remember the best value."""
    callback._should_save_model(epoch, batch, logs, "")


def call_in_order(callbacks: Any) -> None:
    """Have a list of callbacks handle each batch before the next one, in the thread that trains."""
    # Keras has decided by the callbacks that the list had when it was made, and more may have joined since.
    callbacks._async_train = False


def get_first_epoch(model: Any) -> int | None:
    """Return the epoch with which `fit` begins, if it differs from the argument of `fit`; else None."""
    found: int | None = model._initial_epoch
    return found


def set_first_epoch(model: Any, epoch: int | None) -> None:
    """Have `fit` begin with another epoch."""
    model._initial_epoch = epoch
