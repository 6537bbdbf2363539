"""What ``Trainer(backend="tensorflow")`` means."""

from __future__ import annotations

from typing import final

from hocket.train.frameworks import tf_config
from hocket.train.run import backend, worker_group


@final
class TFConfigBackend(backend.BackendConfig):
    """Sets TF_CONFIG in each rank, and TF_USE_LEGACY_KERAS: in 2022 ``tf.keras`` was Keras 2.

    It imports no TensorFlow, and needs none.

    See `hocket.train.frameworks.tf_config` for what listens where.
    """

    def check_work(self, work: object) -> None:
        """Refuse objects of Keras 3."""
        tf_config.refuse_keras_3(work)

    def on_start(self, group: worker_group.WorkerGroup) -> None:
        """Make all ranks workers of one cluster."""
        tf_config.arrange(group, ["worker"] * len(group), legacy_keras=True)

    def on_shutdown(self, group: worker_group.WorkerGroup) -> None:
        """Do nothing: what TensorFlow has opened ends with its process."""
