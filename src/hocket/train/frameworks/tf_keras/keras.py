"""The callback that reports from ``fit`` of tf-keras.

Importing this module imports tf-keras, and with it TensorFlow.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

from hocket import extras
from hocket.train.frameworks import report_callback
from hocket.train.rank import context

with extras.explain("hocket.train.tensorflow.keras", "tf-keras (Keras 2)", "Run pip install 'hocket[tf-keras]'."):
    import tf_keras

    from hocket._base.internals import tf_keras as tf_keras_internals
    from hocket.train.frameworks.tf_keras import framework

MODEL_NAME: Final = "model.keras"
"""The model's file in the checkpoint's folder, for ``tf_keras.models.load_model``."""


class ReportCheckpointCallback(report_callback.ReportMixin, tf_keras.callbacks.Callback):  # type: ignore[misc]  # tf-keras is not type-checked
    """A callback that reports Keras's logs, and a checkpoint, after each epoch. Signature and rules are Ray's.

    Every rank must have it among its callbacks, since every rank reports, and all ranks together read a model under
    MultiWorkerMirroredStrategy. Rank 0's files are the checkpoint: ``model.keras``, if the model can be saved so, and
    ``weights.npz``, which `hocket.train.frameworks.weights` and numpy alone can read.

    Args:
        checkpoint_on: The moments at which to report with a checkpoint: ``"epoch_end"``, ``"train_batch_end"``, ..., or
            several. Metrics always come with it.
        report_metrics_on: The moments at which to report without a checkpoint.
        metrics: The logs to report: a name, several, or a dict from the reported name to Keras's. Default: all.

    Raises:
        ValueError: There is no such moment, or no such metric.
    """

    def write_checkpoint(self, folder: str) -> bool:
        """Write the model in every rank; return whether this rank is rank 0."""
        with contextlib.suppress(NotImplementedError):  # a subclass of Model may be unable to
            tf_keras_internals.save(self.model, str(Path(folder, MODEL_NAME)))
        framework.FRAMEWORK.save_weights(self.model, folder)
        return context.get_context().get_world_rank() == 0
