"""The settings of a search: records that check their values when they are made."""

from __future__ import annotations

import datetime as dt
import enum
import os
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from hocket import keywords
from hocket._base import texts
from hocket.stores import names, places
from hocket.train import configs as train_configs
from hocket.train import spellings
from hocket.tune import callback, checks, progress_reporter, stopper, trial
from hocket.tune.schedulers import contract
from hocket.tune.search import concurrency_limiter, searcher

NameCreator: TypeAlias = Callable[[trial.Trial], str]


@keywords.explained(
    aliases={"num_trials": "num_samples", "max_concurrent": "max_concurrent_trials", "searcher": "search_alg"}
)
@dataclass(frozen=True)
class TuneConfig:
    """The settings of a search: its metric, searcher, scheduler, limits and names.

    Raises:
        TypeError: A value has the wrong type.
        ValueError: A value breaks a rule.

    Example:
        >>> from hocket import tune
        >>> tune.TuneConfig(metric="loss", mode="min", num_samples=20).num_samples
        20
    """

    mode: str | None = None
    """Whether the greatest (``"max"``) or the least (``"min"``) value of `metric` is the best."""
    metric: str | None = None
    """The metric to optimize, ``"a/b"`` for a nested one. Not needed if the searcher or the scheduler has its own."""
    search_alg: searcher.Searcher | None = None
    """The searcher, which proposes configurations. Default: `BasicVariantGenerator`, which samples at random."""
    scheduler: contract.TrialScheduler | None = None
    """The scheduler, which decides which trials go on. Default: `FIFOScheduler`, which stops none."""
    num_samples: int = 1
    """How many configurations to sample, each with every point of the grid. -1: sample until the search ends."""
    max_concurrent_trials: int | None = None
    """The most trials that run at once. Default: as many as the session's resources allow."""
    time_budget_s: float | dt.timedelta | None = None
    """Seconds after which the search stops its running trials and ends."""
    reuse_actors: bool | None = None
    """Whether a process runs one trial after another; a class then needs `reset_config`. Default: True for functions,
    so a trial finds the global variables that an earlier one left; False for classes."""
    trial_name_creator: NameCreator | None = None
    """A function from a trial to its name."""
    trial_dirname_creator: NameCreator | None = None
    """A function from a trial to the name of its folder, which must differ from trial to trial."""
    _: KW_ONLY
    seed: int | None = None
    """The seed of all randomness. The same seed gives the same configurations, whatever the number of workers. Default:
    a new seed for each search; the log stores it."""
    deterministic: bool = False
    """Whether the searcher proposes the same configurations in each run, however many trials run at once. It then
    proposes a trial from the results of all earlier trials except the latest `max_concurrent_trials` - 1. The price: a
    new trial waits for the result of the trial `max_concurrent_trials` before it, and the searcher learns later."""
    trial_timeout_s: float | None = None
    """Seconds without a report after which a trial fails. Default: no limit."""

    def __post_init__(self) -> None:
        if self.mode not in (None, "max", "min"):
            is_turned = self.metric in ("max", "min")  # Ray's positional order is mode, metric
            remedy = f"TuneConfig(metric={self.mode!r}, mode={self.metric!r})" if is_turned else "mode='min' for a loss"
            raise ValueError(f"mode must be 'max' or 'min', but received {self.mode!r}. Write {remedy}.")
        metric: object = self.metric
        if metric is not None and (not isinstance(metric, str) or not metric):
            raise TypeError(f"metric must be a metric's name, but received {self.metric!r}. Write metric='loss'.")
        if self.metric is not None and self.mode is None:
            raise ValueError(
                f"metric={self.metric!r} needs mode, because 'max' and 'min' are equally likely. Write mode='min' for "
                "a loss, mode='max' for an accuracy."
            )
        for name, kind in (("search_alg", searcher.Searcher), ("scheduler", contract.TrialScheduler)):
            value: object = getattr(self, name)
            if value is not None and not isinstance(value, kind):
                raise TypeError(
                    f"{name} must be a {kind.__name__}, but received {value!r}. Write "
                    f"{'OptunaSearch()' if name == 'search_alg' else 'ASHAScheduler()'}, or "
                    f"create_{'searcher' if name == 'search_alg' else 'scheduler'}(name)."
                )
        rule = "1 or more, or -1 for a search without end"
        checks.check_int("num_samples", self.num_samples, rule, least=-1)
        if self.num_samples == 0:
            raise ValueError(f"num_samples must be {rule}, but received 0.")
        checks.check_flag("reuse_actors", self.reuse_actors, None)
        checks.check_flag("deterministic", self.deterministic)
        checks.check_function("trial_name_creator", self.trial_name_creator)
        checks.check_function("trial_dirname_creator", self.trial_dirname_creator)
        self._check_limits()

    def _check_limits(self) -> None:
        if self.max_concurrent_trials is not None:
            checks.check_int("max_concurrent_trials", self.max_concurrent_trials, "0 or more (0: no limit)")
            if self.max_concurrent_trials < 0:
                raise ValueError(
                    f"max_concurrent_trials must be 0 or more, but received {self.max_concurrent_trials}. Leave it "
                    "out to run as many trials as the resources allow."
                )
            if isinstance(self.search_alg, concurrency_limiter.ConcurrencyLimiter) and self.max_concurrent_trials:
                raise ValueError(
                    f"max_concurrent_trials={self.max_concurrent_trials} and a ConcurrencyLimiter both limit the "
                    "trials that run at once. Leave one of them out."
                )
        if self.deterministic and not self.max_concurrent_trials:
            raise ValueError(
                "deterministic=True needs max_concurrent_trials: a trial is proposed from the results of all earlier "
                "trials except the latest max_concurrent_trials - 1. Write max_concurrent_trials=4."
            )
        if self.seed is not None:
            checks.check_int("seed", self.seed, "0 or more", least=0)
        for name in ("time_budget_s", "trial_timeout_s"):
            checks.check_seconds(name, getattr(self, name))

    @property
    def budget_s(self) -> float | None:
        """`time_budget_s` in seconds."""
        return checks.read_seconds(self.time_budget_s)


@keywords.explained(aliases=spellings.CHECKPOINT)
@dataclass(frozen=True)
class CheckpointConfig(train_configs.CheckpointConfig):
    """The settings of checkpoints: which ones of a trial are kept, and when a `Trainable` saves.

    Raises:
        ValueError: A value breaks a rule.
    """

    checkpoint_frequency: int = 0  # type: ignore[assignment]  # training refuses the setting
    """Steps between a `Trainable`'s saves. 0: only at a scheduler's request. Functions save when they report."""
    checkpoint_at_end: bool | None = None  # type: ignore[assignment]  # training refuses the setting
    """Whether a `Trainable` saves when it ends. Default: True if it has ``save_checkpoint``."""

    def __post_init__(self) -> None:
        rule = "0 or more steps (0: only when a scheduler asks)"
        checks.check_int("checkpoint_frequency", self.checkpoint_frequency, rule, least=0)
        checks.check_flag("checkpoint_at_end", self.checkpoint_at_end, None)
        if self.num_to_keep is not None:
            checks.check_int("num_to_keep", self.num_to_keep, "1 or more, or None to keep all", least=1)
        train_configs.check_score_order(self.checkpoint_score_order)


@keywords.explained(aliases=spellings.FAILURE)
@dataclass(frozen=True)
class FailureConfig:
    """The reaction of a search to a trial's failure.

    Raises:
        ValueError: A value breaks a rule.
        TypeError: A value has the wrong type.
    """

    max_failures: int = 0
    """How often a failed trial is tried again, from its latest checkpoint. 0: never; -1: without limit."""
    fail_fast: bool | str = False
    """True: the first trial that fails ends the search. ``"raise"``: `fit` then also raises its error."""

    def __post_init__(self) -> None:
        checks.check_int("max_failures", self.max_failures, "0 or more, or -1 for no limit", least=-1)
        if not isinstance(self.fail_fast, bool) and self.fail_fast != "raise":
            raise ValueError(f"fail_fast must be True, False or 'raise', but received {self.fail_fast!r}.")
        if self.fail_fast and self.max_failures:
            raise ValueError(
                f"fail_fast={self.fail_fast!r} ends the search at the first failure, but max_failures="
                f"{self.max_failures} tries a trial again. Leave one of them out."
            )


@keywords.explained(
    aliases=spellings.RUN, nested={"failure_config": FailureConfig, "checkpoint_config": CheckpointConfig}
)
@dataclass(frozen=True)
class RunConfig:
    """A search's name, its storage, when its trials stop, and how it shows progress.

    Raises:
        ValueError: `name` is not the name of a single folder, or the scheme of `storage_path` is unknown.
        TypeError: A value has the wrong type.
        MissingExtraError: `storage_path` is in a store that needs a library that is not installed.
    """

    name: str | None = None
    """The search's folder in `storage_path`. Default: a name made of date, time and a random part."""
    storage_path: str | os.PathLike[str] | None = None
    """The folder that holds searches, or an address such as ``s3://bucket/searches``. Default: ``~/hocket_results``."""
    storage_filesystem: Any = None
    """A file system of pyarrow or fsspec that holds `storage_path`. Default: this machine's, unless the path is an
    address."""
    failure_config: FailureConfig = field(default_factory=FailureConfig)
    """How the search reacts to a trial's failure."""
    checkpoint_config: train_configs.CheckpointConfig = field(default_factory=CheckpointConfig)
    """Which checkpoints of a trial are kept."""
    sync_config: object = None
    """Accepted for programs written for Ray; has no effect, because files are written straight to their final place."""
    verbose: int = 1
    """0: print nothing; 1: print the best trials, during the search and at its end; 2: also a line for each report."""
    stop: object = None
    """When a trial ends: limits such as ``{"accuracy": 0.9, "training_iteration": 10}`` (at the first that it reaches),
    a function of a trial's id and its report, or a `Stopper`."""
    callbacks: Sequence[callback.Callback] = ()
    """Callbacks, which run in the process that called `fit`, in this order."""
    progress_reporter: progress_reporter.ProgressReporter | None = None
    """Prints tables during the search, such as `CLIReporter`. Default: a terminal shows the rows of the best trials."""
    log_to_file: bool | str | tuple[str, str] = False
    """Whether a trial's output also goes to files in its folder: True for ``stdout`` and ``stderr``, one name for both,
    or two names. Output of C code does not."""

    def __repr__(self) -> str:
        return places.show_record(self)

    def __post_init__(self) -> None:
        defaults = {"failure_config": FailureConfig, "checkpoint_config": CheckpointConfig, "callbacks": tuple}
        for name, default in defaults.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, default())
        given: object = self.name
        fault = None if given is None else names.find_folder_fault(given)
        if fault is not None:
            raise ValueError(
                f"name must be the name of one folder, but received {texts.safe_repr(given)}: {fault}. Put the folders "
                "above it into storage_path."
            )
        train_configs.check_storage(self.storage_path, self.storage_filesystem)
        verbose: object = self.verbose
        checks.check_int("verbose", int(verbose) if isinstance(verbose, bool) else verbose, "0 or more", least=0)
        checks.read_output_files(self.log_to_file)
        reporter: object = self.progress_reporter
        if reporter is not None and not isinstance(reporter, progress_reporter.ProgressReporter):
            raise TypeError(
                f"progress_reporter must be a ProgressReporter, but received {reporter!r}. Write CLIReporter()."
            )
        if not isinstance(self.callbacks, Sequence):
            raise TypeError(
                f"callbacks must be a list of Callbacks, but received {self.callbacks!r}. Write callbacks=[callback]."
            )
        self._check_types()

    def _check_types(self) -> None:
        failure: object = self.failure_config
        checkpoint: object = self.checkpoint_config
        if isinstance(failure, train_configs.FailureConfig):  # older programs have one class for both
            object.__setattr__(self, "failure_config", FailureConfig(max_failures=failure.max_failures))
        elif not isinstance(failure, FailureConfig):
            raise TypeError(
                f"failure_config must be a FailureConfig, but received {failure!r}. Write "
                "FailureConfig(max_failures=3)."
            )
        if not isinstance(checkpoint, train_configs.CheckpointConfig):
            raise TypeError(
                f"checkpoint_config must be a CheckpointConfig, but received {checkpoint!r}. Write "
                "CheckpointConfig(num_to_keep=1)."
            )
        for one in self.callbacks:
            if not isinstance(one, callback.Callback):
                raise TypeError(
                    f"callbacks must be instances of hocket.tune.Callback, but received {one!r}. Inherit from it, and "
                    "pass an instance."
                )
        stopper.build_stopper(self.stop)

    @property
    def output_files(self) -> tuple[str, str] | None:
        """The names of the files that `log_to_file` asks for."""
        return checks.read_output_files(self.log_to_file)

    def locate(self) -> Path | places.Place:
        """Return the folder that holds searches: an absolute path, or a place in a store."""
        found = train_configs.locate(self.storage_path, self.storage_filesystem)
        return found if isinstance(found, places.Place) else found.absolute()


AnyRunConfig: TypeAlias = RunConfig | train_configs.RunConfig
"""The configuration of a search; older programs pass the configuration of a training run."""


def read_run_config(given: object) -> object:
    """Return the configuration of a search; convert that of a training run, which older programs pass."""
    if not isinstance(given, train_configs.RunConfig):
        return given
    for name in ("callbacks", "worker_runtime_env"):
        if getattr(given, name):
            raise TypeError(
                f"run_config is a hocket.train.RunConfig, and a search cannot use its {name}. Write "
                f"tune.RunConfig(...){', with callbacks of hocket.tune.Callback' if name == 'callbacks' else ''}."
            )
    kept = vars(given.checkpoint_config)
    return RunConfig(
        name=given.name,
        storage_path=given.storage_path,
        storage_filesystem=given.storage_filesystem,
        failure_config=FailureConfig(max_failures=given.failure_config.max_failures),
        checkpoint_config=CheckpointConfig(
            **{name: kept[name] for name in ("num_to_keep", "checkpoint_score_attribute", "checkpoint_score_order")}
        ),
    )


class ResumeType(enum.Enum):
    """The treatment of a trial when its search is resumed."""

    RESUME = "resume"
    """The trial goes on from its latest checkpoint."""
    RESTART = "restart"
    """The trial begins anew."""
    SKIP = "skip"
    """The trial stays as it is."""


@keywords.explained()
@dataclass(frozen=True)
class ResumeConfig:
    """The treatment of trials, by their state, when a search is resumed.

    Raises:
        TypeError: A value is no `ResumeType`.
    """

    finished: ResumeType = ResumeType.SKIP
    """Trials that ended."""
    unfinished: ResumeType = ResumeType.RESUME
    """Trials that were running, waiting or paused."""
    errored: ResumeType = ResumeType.SKIP
    """Trials that failed."""

    ResumeType = ResumeType

    def __post_init__(self) -> None:
        for name in ("finished", "unfinished", "errored"):
            value: object = getattr(self, name)
            if not isinstance(value, ResumeType):
                raise TypeError(
                    f"{name} must be a ResumeConfig.ResumeType (RESUME, RESTART or SKIP), but received {value!r}. "
                    f"Write {name}=ResumeConfig.ResumeType.RESUME."
                )
