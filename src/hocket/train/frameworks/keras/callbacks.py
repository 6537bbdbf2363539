"""The callback that reports from ``fit``."""

from __future__ import annotations

import keras

from hocket.train.frameworks import report_callback, weights
from hocket.train.frameworks.keras import checkpoints
from hocket.train.rank import context


class ReportCheckpointCallback(report_callback.ReportMixin, keras.callbacks.Callback):  # type: ignore[misc]  # Keras is not type-checked
    """A callback that reports Keras's logs, and a checkpoint, after each epoch.

    Signature and rules are those of Ray's callback for Keras 2.

    Every rank must have it among its callbacks, since every rank reports. With a prepared model the logs of an epoch
    cover all ranks' rows. The checkpoint is rank 0's ``weights.npz``: `load_weights` reads it into a model, and numpy
    alone can read it.

    Args:
        checkpoint_on: The moments at which to report with a checkpoint: ``"epoch_end"``, ``"train_batch_end"``, ..., or
            several. Metrics always come with it.
        report_metrics_on: The moments at which to report without a checkpoint.
        metrics: The logs to report: a name, several, or a dict from the reported name to Keras's. Default: all.

    Raises:
        ValueError: There is no such moment, or no such metric.
    """

    def write_checkpoint(self, folder: str) -> bool:
        """Write the weights in rank 0; return whether this rank is rank 0."""
        is_first = context.get_context().get_world_rank() == 0
        if is_first or checkpoints.is_spread(self.model):
            named = checkpoints.read_weights(self.model)
            if is_first:
                weights.save(folder, named)
        return is_first
