"""The trainer under all others: pass a function and the number of ranks that run it, and call `fit`."""

from __future__ import annotations

import contextlib
import copy
import datetime as dt
import functools
import inspect
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn, Self, TypedDict, TypeVar

from hocket import data, exceptions, keywords
from hocket.observe.runs import log
from hocket.stores import places
from hocket.train import configs, errors, refusals, spellings, trainer_docs, user_callback, validation
from hocket.train import result as result_module
from hocket.train.checkpoints import replica, storage
from hocket.train.progress import display
from hocket.train.rank import datasets as datasets_module
from hocket.train.rank import rank_placement, usage
from hocket.train.run import backend, checkpoint_manager, report_book, runner, training_run
from hocket.train.strategies import hosting

_log = logging.getLogger("hocket.train")
_Trainer = TypeVar("_Trainer", bound=type)
_Config = TypeVar("_Config", bound=backend.BackendConfig)


class TrainerOptions(TypedDict, total=False):
    """The arguments that every trainer has. `DataParallelTrainer` documents each."""

    train_loop_config: Mapping[str, object] | None
    scaling_config: configs.ScalingConfig | None
    run_config: configs.RunConfig | None
    validation_config: validation.ValidationConfig | None
    datasets: Mapping[str, data.Dataset] | None
    dataset_config: datasets_module.DataConfig | None
    metadata: None
    resume_from_checkpoint: None


def explained(**own: type) -> Callable[[_Trainer], _Trainer]:
    """Return a decorator of trainers: an unknown keyword raises an error that says what to write instead.

    A framework's trainer declares only its own arguments, and ``**options``. The decorator completes its signature and
    its documentation from `DataParallelTrainer`.

    Args:
        **own: The class of the trainer's own configuration, under the keyword that takes it.
    """
    aliases = {**spellings.TRAINER, **dict(zip(("backend_config",), own, strict=False))}
    nested = {"scaling_config": configs.ScalingConfig, "run_config": configs.RunConfig, **own}

    def decorate(cls: _Trainer) -> _Trainer:
        if own:
            _add_options(cls)
        return keywords.explained(aliases=aliases, nested=nested)(cls)

    return decorate


def _add_options(cls: type) -> None:
    """Give the constructor of a trainer the parameters of `TrainerOptions` in place of ``**options``."""
    shared = inspect.signature(DataParallelTrainer).parameters
    config, *others = (shared[name] for name in TrainerOptions.__annotations__)
    method: Any = vars(cls)["__init__"]
    signature = inspect.signature(method)
    itself, function, *own, _ = signature.parameters.values()
    parameters = [itself, function, config, *own, *others]
    method.__signature__ = signature.replace(parameters=parameters)
    names = [one.name for one in parameters]
    cls.__doc__ = trainer_docs.complete(cls.__doc__ or "", DataParallelTrainer.__doc__ or "", names)


@explained()
class DataParallelTrainer:
    """A trainer that runs one function in many ranks at once.

    Args:
        train_loop_per_worker: The training function. It takes no argument, or only the configuration.
        train_loop_config: The training function's argument, if it takes one. Default: an empty dict.
        backend_config: How the ranks communicate. Default: no communication is set up.
        scaling_config: The number of ranks and the resources of each. Default: one rank with one CPU.
        run_config: Name, storage, failures, checkpoints, callbacks.
        validation_config: How to validate a checkpoint when its report requests that.
        datasets: Datasets by name; `get_dataset_shard` returns a rank's part of one. `fit` executes them before the
            ranks start.
        dataset_config: Which datasets are split over the ranks.
        metadata: For programs written for Ray; must be None.
        resume_from_checkpoint: For programs written for Ray; must be None.

    Raises:
        TypeError: `train_loop_per_worker` cannot be called, or a configuration has the wrong type.
        ValueError: `train_loop_per_worker` needs more than one argument, or takes none though a configuration is given.
        DeprecationWarning: An argument is given that Ray Train no longer supports either.

    Example:
        >>> import tempfile
        >>> from hocket import train
        >>> def count(config):
        ...     for step in range(config["steps"]):
        ...         train.report({"step": step})
        >>> trainer = train.DataParallelTrainer(
        ...     count,
        ...     train_loop_config={"steps": 3},
        ...     scaling_config=train.ScalingConfig(num_workers=0),
        ...     run_config=train.RunConfig(storage_path=tempfile.mkdtemp()),
        ... )
        >>> trainer.fit().metrics
        {'step': 2}
    """

    def __init__(
        self,
        train_loop_per_worker: Callable[..., object],
        *,
        train_loop_config: Mapping[str, object] | None = None,
        backend_config: backend.BackendConfig | None = None,
        scaling_config: configs.ScalingConfig | None = None,
        run_config: configs.RunConfig | None = None,
        validation_config: validation.ValidationConfig | None = None,
        datasets: Mapping[str, data.Dataset] | None = None,
        dataset_config: datasets_module.DataConfig | None = None,
        metadata: None = None,
        resume_from_checkpoint: None = None,
    ) -> None:
        self._takes_config = _check_function(train_loop_per_worker)
        if train_loop_config is not None and not self._takes_config:
            raise ValueError(
                f"train_loop_config is {train_loop_config!r}, but the training function "
                f"{_name(train_loop_per_worker)} takes no argument. Give it one, or leave train_loop_config out."
            )
        check_type("backend_config", backend_config, backend.BackendConfig)
        check_type("scaling_config", scaling_config, configs.ScalingConfig)
        check_type("run_config", run_config, configs.RunConfig)
        check_type("validation_config", validation_config, validation.ValidationConfig)
        refusals.check("DataParallelTrainer", metadata=metadata, resume_from_checkpoint=resume_from_checkpoint)
        self._datasets, self._dataset_config = datasets_module.check(datasets, dataset_config)
        self._function = train_loop_per_worker
        self._config = train_loop_config if train_loop_config is not None else {}
        self._backend = backend_config or backend.NoBackend()
        self._scaling = scaling_config or configs.ScalingConfig()
        self._run_config = run_config or configs.RunConfig()
        self._validation = validation_config

    def __repr__(self) -> str:
        workers = self._scaling.num_workers
        strategy = "" if self._run_config.name is None else f", name={self._run_config.name!r}"
        return f"{type(self).__name__}({_name(self._function)}, num_workers={workers!r}{strategy})"

    def fit(self) -> result_module.Result:
        """Train, and return when all ranks have returned.

        No rank is left running when `fit` returns or raises.

        Raises:
            WorkerGroupError: Ranks raised errors or died more often than `FailureConfig` allows. The message names
                the rank, the cause and the place.
            TrainingFailedError: The ranks made different numbers of reports, resources were not free in time, or
                another run of this name is in progress.
            InfeasibleResourcesError: The ranks need more resources than the session can ever have.
            ValueError: A dataset has no rows.
            TaskError: A dataset could not be made.
            StoreError: The store that keeps the run failed twice or refused a request, or another run of this name
                has begun there. Earlier commits stay whole.
        """
        launcher = rank_placement.describe_launcher(os.environ)
        if launcher:
            _log.warning("%s", launcher)
        try:
            return self.fit_with(runner.choose(self._scaling))
        except (exceptions.HocketError, KeyboardInterrupt) as error:
            exceptions.hide_frames(error)
            raise

    def fit_with(self, ranks_runner: runner.Runner, start_level: int = logging.WARNING) -> result_module.Result:
        """Train with a given runner of ranks, such as one outside the session (`hocket.spark.run`).

        Args:
            ranks_runner: The runner.
            start_level: The log level of the line that says that the run continues an earlier one.

        Raises:
            HocketError: See `fit`.
        """
        _log.setLevel(self._run_config.logging_config.log_level)
        try:
            ranks_runner.prepare(self._function, self._backend, self._scaling)  # first: processes load in parallel
            config = display.add_display(self._run_config)
            name = config.name or _build_name()
            with _hold(config, name) as (run_storage, run_replica):
                return self._fit(config, run_storage, run_replica, ranks_runner, start_level)
        except (exceptions.HocketError, KeyboardInterrupt) as error:
            exceptions.hide_frames(error)
            raise

    def _fit(
        self,
        config: configs.RunConfig,
        run_storage: storage.Storage,
        run_replica: replica.Replica | None,
        ranks_runner: runner.Runner,
        start_level: int,
    ) -> result_module.Result:
        manager = checkpoint_manager.CheckpointManager(
            run_storage, config.checkpoint_config, self._validation, run_replica
        )
        if run_replica is not None:
            manager.bring_newest()
        context = user_callback.TrainRunContext(
            experiment_name=run_storage.experiment_name,
            path=run_storage.path,
            num_workers=self._scaling.max_workers,
            train_loop_config=self._config,
            start_checkpoint_name=manager.latest_name,
        )
        if context.start_checkpoint_name:
            _log.log(start_level, "%s", context.describe_start())
        run_log = log.RunLog(run_storage.path)
        book = report_book.ReportBook(context, manager, config.callbacks, run_log)
        try:
            run_log.begin(run_storage.experiment_name, self._config, manager.latest_name or None)
            with (
                user_callback.follow_run(context, config.callbacks),
                hosting.hosted(self._function, max(context.num_workers, 1)) as (function, host),
            ):
                supplies = datasets_module.prepare(
                    self._datasets, self._dataset_config, stays_here=ranks_runner.stays_here
                )
                run = training_run.Run(
                    function=function,
                    args=(self._config,) if self._takes_config else (),
                    scaling=self._scaling,
                    config=config,
                    run_storage=run_storage,
                    backend_config=self._backend,
                    validation=self._validation,
                    supplies=supplies,
                    manager=manager,
                    book=book,
                    renew=functools.partial(hosting.renew, function, host),
                )
                returned = None
                with contextlib.suppress(user_callback.Enough):
                    returned = ranks_runner.train(run)
                statistics = {} if host is None else host.get_statistics()
        except BaseException as error:
            run_log.end(error)
            path = str(run_storage.path) if run_replica is None else run_replica.place.path
            errors.note_place(error, path, run_storage.experiment_name, manager.latest_name)
            storage.discard_empty(run_storage)
            raise
        finally:
            storage.close_storage(run_storage)
        run_log.end(None)
        if context.start_checkpoint_name and not book.history:
            _log.log(start_level, "%s", context.describe_nothing())
        value, sharding = usage.unwrap(returned)
        place = None if run_replica is None else run_replica.place
        return result_module.build(manager, book.history, run_storage, value, statistics, sharding, place)

    def derive(
        self,
        *,
        train_loop_config: Mapping[str, object] | None = None,
        scaling_config: configs.ScalingConfig | None = None,
        run_config: configs.RunConfig | None = None,
        datasets: Mapping[str, data.Dataset] | None = None,
    ) -> Self:
        """Return a copy of this trainer with the given settings replaced. A search derives one for each trial.

        Args:
            train_loop_config: Keys to add to the configuration, or to replace in it.
            scaling_config: Replaces this trainer's, if given.
            run_config: Replaces this trainer's, if given.
            datasets: Replace this trainer's, if given.

        Raises:
            TypeError: A configuration has the wrong type.
            ValueError: The training function takes no argument, but `train_loop_config` is given.
        """
        found = copy.copy(self)
        if train_loop_config and not self._takes_config:
            raise ValueError(
                f"train_loop_config is {train_loop_config!r}, but the training function {_name(self._function)} takes "
                "no argument. Give it one, or leave train_loop_config out."
            )
        check_type("scaling_config", scaling_config, configs.ScalingConfig)
        check_type("run_config", run_config, configs.RunConfig)
        found._config = {**self._config, **(train_loop_config or {})}
        found._scaling = scaling_config or self._scaling
        found._run_config = run_config or self._run_config
        if datasets is not None:
            found._datasets, found._dataset_config = datasets_module.check(datasets, self._dataset_config)
        return found

    @property
    def scaling_config(self) -> configs.ScalingConfig:
        """The number of ranks and the resources of each."""
        return self._scaling

    @property
    def run_config(self) -> configs.RunConfig:
        """Name, storage, failures, checkpoints, callbacks."""
        return self._run_config

    @classmethod
    def restore(cls, *_: object, **__: object) -> NoReturn:
        """Not supported, as in Ray. To continue a run, call `fit` with its name and storage path.

        Raises:
            DeprecationWarning: Always.
        """
        refusals.refuse("DataParallelTrainer", "restore", cls.__name__)

    @classmethod
    def can_restore(cls, *_: object, **__: object) -> NoReturn:
        """Not supported, as in Ray; see `restore`.

        Raises:
            DeprecationWarning: Always.
        """
        refusals.refuse("DataParallelTrainer", "can_restore", cls.__name__)


@contextlib.contextmanager
def _hold(config: configs.RunConfig, name: str) -> Iterator[tuple[storage.Storage, replica.Replica | None]]:
    """Keep other runs of this name out of the run's folder, or out of the working folder of a run in a store."""
    given = config.locate()
    if isinstance(given, places.Place):
        with replica.hold(given, name) as held:
            yield held
        return
    try:
        folder = os.path.realpath(given)  # a loop of links passes here; creating the folder reports it
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"RunConfig(storage_path={os.fspath(given)!r}) is relative to the working directory, which has been "
            "removed. Give an absolute path, which begins with /."
        ) from error
    run_storage = storage.Storage(folder, name)
    with storage.hold_storage(run_storage):
        yield run_storage, None


def _build_name() -> str:
    now = dt.datetime.now().astimezone()
    return f"hocket_train_run-{now:%Y-%m-%d_%H-%M-%S}-{os.urandom(3).hex()}"


def _name(function: Callable[..., object]) -> str:
    return f"`{getattr(function, '__name__', repr(function))}`"


def check_type(name: str, value: object, kind: type) -> None:
    """Refuse a setting of the wrong type. None stands for the default."""
    if value is not None and not isinstance(value, kind):
        raise TypeError(f"{name} must be a {kind.__name__}, but received {value!r}. Write {name}={kind.__name__}(...).")


def choose(name: str, given: _Config | None, kind: type[_Config]) -> _Config:
    """Return a framework's configuration, with its defaults if none is given, and refuse one of the wrong type."""
    check_type(name, given, kind)
    return given or kind()


def _check_function(function: object) -> bool:
    """Check a training function, and return whether it takes the configuration."""
    if not callable(function):
        raise TypeError(
            f"train_loop_per_worker must be a function, but received {function!r}. Pass the function itself, without "
            "calling it."
        )
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        kind = "a coroutine" if inspect.iscoroutinefunction(function) else "a generator"
        raise TypeError(
            f"train_loop_per_worker must do its work when it is called, but {_name(function)} only makes {kind}. Write "
            "a function that runs the coroutine with asyncio.run(...), or loops over the generator."
        )
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some built-ins have no signature
        return True
    kinds = inspect.Parameter
    parameters = signature.parameters.values()
    positional = [p for p in parameters if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)]
    needed = [p for p in positional if p.default is kinds.empty]
    needed += [p for p in parameters if p.kind is kinds.KEYWORD_ONLY and p.default is kinds.empty]
    if len(needed) > 1 or any(p.kind is kinds.KEYWORD_ONLY for p in needed):
        raise ValueError(
            f"train_loop_per_worker must take no argument or one (the configuration), but {_name(function)} takes "
            f"{len(needed)}: {signature}. Put the values into train_loop_config, and read them from the one argument."
        )
    return bool(positional) or any(p.kind is kinds.VAR_POSITIONAL for p in parameters)
