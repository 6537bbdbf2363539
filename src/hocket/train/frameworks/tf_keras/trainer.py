"""The trainer for TensorFlow."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Unpack, final

from hocket._base.internals import keras as keras_internals
from hocket.train import configs, data_parallel_trainer, strategies
from hocket.train.frameworks.tf_keras import config, parameter_servers
from hocket.train.run import backend


@final
@data_parallel_trainer.explained(tensorflow_config=config.TensorflowConfig)
class TensorflowTrainer(data_parallel_trainer.DataParallelTrainer):
    """A trainer that runs a function in ranks which find each other by TF_CONFIG.

    Args:
        train_loop_per_worker: The training function. It takes no argument, or one: the configuration. It makes its
            model under ``tf.distribute.MultiWorkerMirroredStrategy().scope()``, and reports with `hocket.train.report`
            or `ReportCheckpointCallback`. With parameter servers it is the chief's program:
            ``tf.distribute.ParameterServerStrategy`` and ``ClusterCoordinator``.
        strategy: ``"parameter_server"`` or a `ParameterServers` adds a chief and servers to the workers. With None, or
            ``AllReduce()`` as for the other trainers, all ranks are workers, and TensorFlow decides how gradients
            travel.
        tensorflow_config: The role of each rank, and which Keras ``tf.keras`` is.
        scaling_config: The number of workers, and each worker's resources. Default: one worker, with a CPU.

    Example:
        >>> import tempfile
        >>> from hocket import train
        >>> from hocket.train.tensorflow import TensorflowTrainer
        >>> def train_loop(config):  # a program for tf.distribute.MultiWorkerMirroredStrategy
        ...     train.report({"loss": 1 / config["epochs"]})
        >>> trainer = TensorflowTrainer(
        ...     train_loop,
        ...     train_loop_config={"epochs": 2},
        ...     scaling_config=train.ScalingConfig(num_workers=0),  # in this process, without TF_CONFIG
        ...     run_config=train.RunConfig(storage_path=tempfile.mkdtemp()),
        ... )
        >>> trainer.fit().metrics
        {'loss': 0.5}
    """

    def __init__(
        self,
        train_loop_per_worker: Callable[..., object],
        *,
        strategy: strategies.Strategy | parameter_servers.ParameterServers | str | None = None,
        tensorflow_config: config.TensorflowConfig | None = None,
        **options: Unpack[data_parallel_trainer.TrainerOptions],
    ) -> None:
        chosen = data_parallel_trainer.choose("tensorflow_config", tensorflow_config, config.TensorflowConfig)
        scaling_config = options.get("scaling_config")
        data_parallel_trainer.check_type("scaling_config", scaling_config, configs.ScalingConfig)
        cluster = parameter_servers.parse(strategy)
        if cluster is None and strategy is not None and strategy != strategies.AllReduce():
            raise ValueError(
                f"TensorflowTrainer cannot use strategy={strategy!r}: tf.distribute in the training function decides "
                f"how gradients travel. Leave it out, write strategy={parameter_servers.NAME!r} for servers of "
                "variables, or use hocket.train.keras.KerasTrainer, which has LocalSGD."
            )
        settings: backend.BackendConfig = chosen
        if cluster is not None:
            settings = _build_backend(cluster, chosen, scaling_config)
        elif tensorflow_config is not None and scaling_config is not None and scaling_config.num_workers:
            tensorflow_config.list_task_types(scaling_config.max_workers)  # refuses before anything starts
        if callable(train_loop_per_worker):
            train_loop_per_worker = ExplainKeras3(train_loop_per_worker)
        super().__init__(train_loop_per_worker, backend_config=settings, **options)


def _build_backend(
    cluster: parameter_servers.ParameterServers,
    given: config.TensorflowConfig,
    scaling: configs.ScalingConfig | None,
) -> parameter_servers.ParameterServerBackend:
    """Check the settings that come with a cluster, before anything starts, and return the group's."""
    if given.chief:
        raise ValueError(
            "TensorflowConfig(chief=True) would be a second chief: with parameter servers there is one already, "
            "besides the workers. Leave chief out."
        )
    if given.num_evaluators:
        raise ValueError(
            f"TensorflowConfig(num_evaluators={given.num_evaluators}) takes ranks from the workers, but with parameter "
            "servers an evaluator is a process besides the workers. Write strategy=ParameterServers(num_evaluators=1)."
        )
    parameter_servers.check_scaling(scaling or configs.ScalingConfig())
    return parameter_servers.ParameterServerBackend(cluster=cluster, legacy_keras=given.legacy_keras)


@final
class ExplainKeras3:
    """A training function that explains the error when Keras 3 meets MultiWorkerMirroredStrategy. It looks like the
    original.

    Keras 3 does not refuse the strategy. Its ``fit`` fails at the first batch, with pages about a value of the type
    PerReplica.

    Args:
        function: The training function.
    """

    def __init__(self, function: Callable[..., object]) -> None:
        self._function = function
        functools.update_wrapper(self, function)

    def __call__(self, *args: object) -> object:
        """Run the training function."""
        try:
            return self._function(*args)
        except Exception as error:
            if "PerReplica" not in str(error) or keras_internals.BACKEND_TRAINER not in sys.modules:
                raise
            raise RuntimeError(
                "Keras 3 does not train under tf.distribute.MultiWorkerMirroredStrategy, because it cannot take one "
                "value for each replica. Make the model with tf.keras, which is tf_keras in a TensorflowTrainer, "
                "instead of `import keras`; or leave the strategy out, use hocket.train.keras.KerasTrainer, and write "
                "model = hocket.train.keras.prepare_model(model)."
            ) from error
