"""Ray Train's trainer of 2022."""

from __future__ import annotations

import contextlib
import datetime as dt
import importlib
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, final

from hocket import keywords
from hocket._base import addresses
from hocket.compat.classic import checkpoints, iterator, ranks, session, training_callbacks
from hocket.train import configs, refusals, spellings
from hocket.train.checkpoints import storage
from hocket.train.frameworks import tf_config
from hocket.train.run import backend as backend_module
from hocket.train.run import worker_group

BACKENDS = ("torch", "tensorflow", "horovod", "none")
"""The names of `Trainer`'s backends."""

DETAILS_SWITCH = "TRAIN_RESULT_ENABLE_DETAILED_AUTOFILLED_METRICS"
"""The driver's environment variable that adds details to each report: date, host, process, total time."""


@final
@keywords.explained(aliases=spellings.SCALING)
class Trainer:
    """A trainer with ranks that stay between `start` and `shutdown`, like Ray Train's of 2022.

    The training function takes no argument, or only the configuration. It may call ``train.report(loss=0.5)``,
    ``save_checkpoint``, ``load_checkpoint``, ``world_rank``, ``local_rank`` and ``world_size``. Each rank's ``report``
    waits until the driver has taken the report. New programs use `DataParallelTrainer` or a framework's trainer.

    Args:
        backend: ``"torch"`` joins the ranks into a process group, ``"horovod"`` does the same for
            ``hocket.train.horovod.torch``, ``"tensorflow"`` sets TF_CONFIG in each rank, ``"none"`` does nothing. Or a
            `BackendConfig`.
        num_workers: The number of ranks.
        use_gpu: Whether each rank holds a GPU: one, unless `resources_per_worker` sets another number.
        resources_per_worker: The resources of each rank, by name. Default: one CPU, and one GPU if `use_gpu`.
        logdir: The folder of the runs. A relative path is below ``~/hocket_results``. Default: a name with date and
            time.
        max_retries: How often in a run dead ranks are started again, from the last saved checkpoint. -1: without end.
            Errors of the training function are not retried.

    Raises:
        ValueError: A value breaks a rule.
        TypeError: A value has the wrong type.
        ImportError: The backend's framework is missing.

    Example:
        >>> import tempfile
        >>> from hocket.train import Trainer
        >>> def train_func(config):
        ...     return [epoch for epoch in range(config.get("num_epochs", 1))]
        >>> trainer = Trainer(backend="none", num_workers=1, logdir=tempfile.mkdtemp())
        >>> trainer.start()
        >>> trainer.run(train_func)
        [[0]]
        >>> trainer.run(train_func, {"num_epochs": 3})
        [[0, 1, 2]]
        >>> trainer.shutdown()
    """

    def __init__(
        self,
        backend: str | backend_module.BackendConfig,
        num_workers: int,
        use_gpu: bool = False,
        resources_per_worker: Mapping[str, float] | None = None,
        logdir: str | Path | None = None,
        max_retries: int = 3,
    ) -> None:
        number: Any = num_workers
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise ValueError(f"num_workers must be 1 or more, but received {num_workers!r}. Write num_workers=2.")
        if max_retries < -1:
            raise ValueError(
                f"max_retries must be -1 (no limit), or 0 or more, but received {max_retries}. Leave it out for 3."
            )
        self._scaling = configs.ScalingConfig(
            num_workers=num_workers, use_gpu=use_gpu, resources_per_worker=resources_per_worker
        )
        self._backend = _build_backend(backend)
        self._max_retries = max_retries
        self.logdir = self.create_logdir(logdir)
        """The folder of the runs."""
        self.latest_run_dir: Path | None = None
        """The folder of the last run, such as ``run_001`` in `logdir`; None before the first."""
        self._run_count = 0
        self._hook: ranks.Hook | None = None
        self._is_active = False
        self._ranks: ranks.Ranks | None = None
        self._store: checkpoints.CheckpointStore | None = None
        self._running: iterator.TrainingIterator | None = None

    def create_logdir(self, log_dir: str | Path | None) -> Path:
        """Make the folder of the runs, and return its path."""
        name = log_dir if log_dir is not None else f"train_{dt.datetime.now().astimezone():%Y-%m-%d_%H-%M-%S}"
        addresses.refuse(name, "log_dir")
        folder = Path(configs.DEFAULT_STORAGE).expanduser() / Path(name).expanduser()
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def start(self, initialization_hook: ranks.Hook | None = None) -> None:
        """Start the ranks; open a session first, if there is none.

        Args:
            initialization_hook: Called in each rank, also in ranks that replace dead ones.

        Raises:
            RuntimeError: The trainer is started already.
            InfeasibleResourcesError: The ranks need more resources than the session can ever have.
        """
        if self._is_active:
            raise RuntimeError("This Trainer is started already. Call run(), or shutdown() first.")
        self._hook = initialization_hook
        self._ranks = ranks.start(self._scaling, self._backend, self._hook)
        self._is_active = True

    def run(
        self,
        train_func: Callable[..., Any],
        config: dict[str, Any] | None = None,
        callbacks: Sequence[training_callbacks.TrainingCallback] | None = None,
        dataset: None = None,
        checkpoint: Mapping[str, Any] | str | Path | None = None,
        checkpoint_strategy: checkpoints.CheckpointStrategy | None = None,
    ) -> list[Any]:
        """Run a training function, and return its values by rank.

        Args:
            train_func: The training function. It takes no argument, or only the configuration.
            config: The training function's configuration. Default: an empty dict.
            callbacks: The callbacks to call with each report.
            dataset: For programs written for Ray; must be None.
            checkpoint: The first value of ``load_checkpoint``: a dict, or the path of a file that a run has kept.
            checkpoint_strategy: Which checkpoints are kept as files. Default: all.

        Raises:
            RuntimeError: The trainer is not started, or the ranks' reports do not fit together.
            WorkerGroupError: Ranks died more often than `max_retries` allows.
            Exception: The training function's own error, of its own type. The trainer can run again.
        """
        listeners = _check_callbacks(callbacks)
        taken = self.run_iterator(train_func, config, dataset, checkpoint, checkpoint_strategy)
        error = True

        def finish(listener: training_callbacks.TrainingCallback) -> None:
            listener.finish_training(error=error)

        with taken, contextlib.ExitStack() as stack:  # every callback's end is called, even if another's fails
            for listener in listeners:
                stack.callback(finish, listener)
                listener.start_training(logdir=str(self.latest_run_dir), config=config or {})
            for results in taken:
                for listener in listeners:
                    listener.process_results(results)
            error = False
        final = taken.get_final_results()
        assert final is not None, "the iterator has come to its end"
        return final

    def run_iterator(
        self,
        train_func: Callable[..., object],
        config: Mapping[str, object] | None = None,
        dataset: None = None,
        checkpoint: Mapping[str, object] | str | Path | None = None,
        checkpoint_strategy: checkpoints.CheckpointStrategy | None = None,
    ) -> iterator.TrainingIterator:
        """Run a training function, and return an iterator over its reports. Arguments and errors are those of `run`.

        An unfinished run is given up when the next run begins.

        Example:
            >>> import tempfile
            >>> from hocket import train
            >>> def train_func():
            ...     for step in range(2):
            ...         train.report(step=step)
            ...     return "done"
            >>> trainer = train.Trainer(backend="none", num_workers=1, logdir=tempfile.mkdtemp())
            >>> trainer.start()
            >>> reports = trainer.run_iterator(train_func)
            >>> [results[0]["step"] for results in reports]
            [0, 1]
            >>> reports.get_final_results()
            ['done']
            >>> trainer.shutdown()
        """
        self._check_active()
        args = _build_args(train_func, config)
        refusals.check("Trainer", dataset=dataset)
        strategy = checkpoint_strategy if checkpoint_strategy is not None else checkpoints.CheckpointStrategy()
        if not isinstance(strategy, checkpoints.CheckpointStrategy):
            raise TypeError(
                f"checkpoint_strategy must be a CheckpointStrategy, but received {strategy!r}. Write "
                "CheckpointStrategy(num_to_keep=2)."
            )
        start_blob = checkpoints.encode(checkpoint)
        if self._running is not None:
            self._running.close()
        run_dir = self._make_run_dir()
        self._store = store = checkpoints.CheckpointStore(run_dir / "checkpoints", strategy, start_blob)

        def begin(blob: bytes | None, is_again: bool) -> ranks.Ranks:
            if is_again:
                self._drop_ranks()
            if self._ranks is None:
                self._ranks = ranks.start(self._scaling, self._backend, self._hook)
            task = session.Task(
                checkpoint_blob=blob,
                score_attribute=None if strategy.num_to_keep == 0 else strategy.checkpoint_score_attribute,
                is_detailed=os.environ.get(DETAILS_SWITCH, "0") == "1",
            )
            self._ranks.begin(task, train_func, args, storage.Storage(str(run_dir.parent), run_dir.name))
            return self._ranks

        def end(is_good: bool) -> None:
            self._running = None
            if not is_good:
                self._drop_ranks()

        self._running = iterator.TrainingIterator(begin, store, self._max_retries, end)
        return self._running

    def shutdown(self) -> None:
        """End the ranks.

        Raises:
            RuntimeError: The trainer is not started.
        """
        self._check_active()
        if self._running is not None:
            self._running.close()
        self._is_active = False
        left, self._ranks = self._ranks, None
        if left is not None:
            left.shutdown(is_clean=True)

    @property
    def latest_checkpoint_dir(self) -> Path | None:
        """The folder of the last run's checkpoints; None before the first run."""
        return None if self._store is None else self._store.folder

    @property
    def latest_checkpoint(self) -> dict[str, Any] | None:
        """The last checkpoint of the last run, even if it is not kept as a file; None if the run saved none."""
        return None if self._store is None else self._store.latest

    @property
    def best_checkpoint_path(self) -> Path | None:
        """The last run's file with the best score; None if there is no file."""
        return None if self._store is None else self._store.best_path

    @property
    def best_checkpoint(self) -> dict[str, Any] | None:
        """The checkpoint in the file of `best_checkpoint_path`; None if there is no file."""
        path = self.best_checkpoint_path
        return None if path is None else checkpoints.load(path)

    @staticmethod
    def load_checkpoint_from_path(checkpoint_file_path: str | Path, *, trust: bool = False) -> dict[str, Any]:
        """Read a checkpoint from a file that a run has kept.

        Args:
            checkpoint_file_path: The file.
            trust: Whether to read a file that other users may write. The file is pickled, so reading it runs code.

        Raises:
            UntrustedFolderError: Other users may write the file, and `trust` is False.
            FileNotFoundError: There is no such file.
            ValueError: The file is not a checkpoint.
        """
        return checkpoints.load(checkpoint_file_path, trust=trust)

    def _check_active(self) -> None:
        if not self._is_active:
            raise RuntimeError(
                "This Trainer is not active. It is either not started yet or already shut down. Call start() first."
            )

    def _make_run_dir(self) -> Path:
        self._run_count += 1
        self.latest_run_dir = self.logdir / f"run_{self._run_count:03d}"
        self.latest_run_dir.mkdir(parents=True, exist_ok=True)
        return self.latest_run_dir

    def _drop_ranks(self) -> None:
        """End the ranks of an unfinished run. The next run starts new ones."""
        left, self._ranks = self._ranks, None
        if left is not None:
            left.shutdown(is_clean=False)


def _build_backend(given: object) -> backend_module.BackendConfig:
    if isinstance(given, backend_module.BackendConfig):
        return given
    if given not in BACKENDS:
        raise (ValueError if isinstance(given, str) else TypeError)(
            f"backend must be one of {list(BACKENDS)} or a BackendConfig, but received {given!r}. Write "
            "backend='torch'."
        )
    if given == "none":
        return backend_module.NoBackend()
    if given == "tensorflow":
        return TFConfigBackend()
    module = importlib.import_module(
        "hocket.train.frameworks.torch.config"
    )  # imports torch, which other backends do not need
    built: backend_module.BackendConfig = module.TorchConfig()
    return built


def _build_args(function: object, config: object) -> tuple[object, ...]:
    """Check a training function, and return its arguments."""
    if not callable(function):
        raise TypeError(
            f"train_func must be a function, but received {function!r}. Pass the function itself, without calling it."
        )
    if config is not None and not isinstance(config, dict):
        raise TypeError(f"config must be a dict, but received {config!r}. Write config={{'lr': 0.1}}.")
    parameters = inspect.signature(function).parameters
    if len(parameters) > 1:
        raise ValueError(
            f"train_func must take no argument or one (the configuration), but takes {len(parameters)}: "
            f"{', '.join(parameters)}. Put the values into config, and read them from the one argument."
        )
    return (config or {},) if parameters else ()


def _check_callbacks(callbacks: Sequence[Any] | None) -> list[training_callbacks.TrainingCallback]:
    given = list(callbacks or ())
    for one in given:
        if not isinstance(one, training_callbacks.TrainingCallback):
            raise TypeError(
                f"callbacks must be instances of hocket.train.callbacks.TrainingCallback, but received {one!r}. "
                "Inherit from it, and pass an instance; a UserCallback is for RunConfig(callbacks=[...])."
            )
    return given


@final
class TFConfigBackend(backend_module.BackendConfig):
    """A setup that sets TF_CONFIG in each rank, and TF_USE_LEGACY_KERAS, because ``tf.keras`` was Keras 2 in 2022.

    It imports no TensorFlow. `hocket.train.frameworks.tf_config` chooses the ranks' addresses.
    """

    def check_work(self, work: object) -> None:
        """Refuse objects of Keras 3."""
        tf_config.refuse_keras_3(work)

    def on_start(self, group: worker_group.WorkerGroup) -> None:
        """Make all ranks workers of one cluster."""
        tf_config.arrange(group, ["worker"] * len(group), legacy_keras=True)

    def on_shutdown(self, group: worker_group.WorkerGroup) -> None:
        """Do nothing, because TensorFlow's servers end with their process."""
