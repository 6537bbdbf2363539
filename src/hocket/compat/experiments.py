"""Searches by one call, the form that programs before `Tuner` use."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from hocket import keywords
from hocket.stores import places
from hocket.train import configs as train_configs
from hocket.tune import (
    callback,
    checks,
    configs,
    errors,
    experiment_analysis,
    program_builder,
    resources,
    result,
    tuner,
)
from hocket.tune import progress_reporter as reporters
from hocket.tune import trial as trials
from hocket.tune.schedulers import contract
from hocket.tune.schedulers import creation as scheduler_creation
from hocket.tune.search import creation as searcher_creation
from hocket.tune.search import searcher

RESUME: Final = ("AUTO", "AUTO+ERRORED", "LOCAL", "LOCAL+ERRORED", "LOCAL+RESTART_ERRORED", "ERRORED_ONLY", "PROMPT")
"""Ray's values of ``resume`` beside True and False."""


@dataclass
class Experiment:
    """An experiment of `run_experiments`: a search under a name."""

    name: str
    run: Any
    """The trainable: a function, a `Trainable`, or a registered name."""
    stop: object = None
    config: Mapping[str, Any] = field(default_factory=dict)
    """The search space."""
    resources_per_trial: Any = None
    """See `with_resources`."""
    num_samples: int = 1
    storage_path: str | os.PathLike[str] | None = None
    checkpoint_config: train_configs.CheckpointConfig | Mapping[str, Any] | None = None
    max_failures: int = 0
    time_budget_s: float | dt.timedelta | None = None
    storage_filesystem: object = None
    sync_config: object = None
    trial_name_creator: configs.NameCreator | None = None
    trial_dirname_creator: configs.NameCreator | None = None
    log_to_file: bool | str | tuple[str, str] = False

    def __post_init__(self) -> None:
        if not isinstance(self.run, str):
            program_builder.check(self.run)


@keywords.guard
def run(
    run_or_experiment: Any,
    *,
    name: str | None = None,
    metric: str | None = None,
    mode: str | None = None,
    stop: object = None,
    time_budget_s: float | dt.timedelta | None = None,
    config: Mapping[str, object] | None = None,
    resources_per_trial: Any = None,
    num_samples: int = 1,
    storage_path: str | os.PathLike[str] | None = None,
    storage_filesystem: object = None,
    search_alg: searcher.Searcher | str | None = None,
    scheduler: contract.TrialScheduler | str | None = None,
    checkpoint_config: train_configs.CheckpointConfig | Mapping[str, Any] | None = None,
    verbose: int = 1,
    progress_reporter: reporters.ProgressReporter | None = None,
    log_to_file: bool | str | tuple[str, str] = False,
    trial_name_creator: configs.NameCreator | None = None,
    trial_dirname_creator: configs.NameCreator | None = None,
    sync_config: object = None,
    max_failures: int = 0,
    fail_fast: bool | str = False,
    resume: bool | str | None = None,
    resume_config: configs.ResumeConfig | None = None,
    reuse_actors: bool | None = None,
    raise_on_failed_trial: bool = True,
    callbacks: Sequence[callback.Callback] = (),
    max_concurrent_trials: int | None = None,
    seed: int | None = None,
    trust: bool = False,
) -> experiment_analysis.ExperimentAnalysis:
    """Run a search, and return the outcomes of all trials. `TuneConfig` and `RunConfig` explain these arguments.

    `Tuner` is the newer form.

    Args:
        run_or_experiment: The trainable to search over, or an `Experiment`.
        name: The search's name.
        metric: The metric to optimize.
        mode: ``"max"`` or ``"min"``.
        stop: When a trial ends.
        time_budget_s: Seconds until the search ends.
        config: The search space.
        resources_per_trial: The resources of a trial; see `with_resources`.
        num_samples: How many configurations to sample.
        storage_path: The folder that holds searches, or an address.
        storage_filesystem: The file system of `storage_path`, as in `RunConfig`.
        search_alg: The searcher, or its name.
        scheduler: The scheduler, or its name.
        checkpoint_config: Which checkpoints are kept.
        verbose: 0 is silent.
        progress_reporter: See `RunConfig`.
        log_to_file: See `RunConfig`.
        trial_name_creator: Makes a trial's name.
        trial_dirname_creator: Makes the name of a trial's folder.
        sync_config: Has no effect.
        max_failures: How often a failed trial is tried again.
        fail_fast: Whether the first failure ends the search.
        resume: Whether the search of this name goes on. ``"AUTO"``: if it exists.
        resume_config: The fate of its trials when it goes on.
        reuse_actors: Whether a process runs one trial after another.
        raise_on_failed_trial: Whether to raise at the end if trials failed.
        callbacks: Callbacks, which run in this process.
        max_concurrent_trials: The most trials that run at once.
        seed: The seed of all randomness.
        trust: With `resume`: unpickle files of the search's folder even if other users may write to it.

    Raises:
        TuneError: Trials failed, and `raise_on_failed_trial` is True; or as `Tuner.fit`.

    Example:
        >>> from hocket import tune
        >>> analysis = tune.run(
        ...     lambda config: {"loss": config["x"] ** 2},
        ...     config={"x": tune.grid_search([1, 2])},
        ...     metric="loss",
        ...     mode="min",
        ...     verbose=0,
        ... )
        >>> analysis.best_config
        {'x': 1}
    """
    given = dict(locals())
    if isinstance(run_or_experiment, Experiment):
        spec = dict(vars(run_or_experiment))
        return run(**{**given, "run_or_experiment": spec.pop("run"), **spec})
    if resources_per_trial is not None:
        registered = run_or_experiment
        run_or_experiment = resources.with_resources(program_builder.find(registered), resources_per_trial)
        if isinstance(registered, str):
            run_or_experiment.__name__ = registered
    if isinstance(checkpoint_config, Mapping):
        checkpoint_config = configs.CheckpointConfig(**checkpoint_config)
    checks.check_flag("raise_on_failed_trial", raise_on_failed_trial)
    tune_config = configs.TuneConfig(
        metric=metric,
        mode=mode,
        search_alg=searcher_creation.create_searcher(search_alg) if isinstance(search_alg, str) else search_alg,
        scheduler=scheduler_creation.create_scheduler(scheduler) if isinstance(scheduler, str) else scheduler,
        num_samples=num_samples,
        max_concurrent_trials=max_concurrent_trials,
        time_budget_s=time_budget_s,
        reuse_actors=reuse_actors,
        trial_name_creator=trial_name_creator,
        trial_dirname_creator=trial_dirname_creator,
        seed=seed,
    )
    run_config = configs.RunConfig(
        name=name,
        storage_path=storage_path,
        storage_filesystem=storage_filesystem,
        failure_config=configs.FailureConfig(max_failures=max_failures, fail_fast=fail_fast),
        checkpoint_config=checkpoint_config or configs.CheckpointConfig(),
        stop=stop,
        verbose=verbose,
        progress_reporter=progress_reporter,
        log_to_file=log_to_file,
        callbacks=callbacks,
    )
    prepared = _prepare(run_or_experiment, config, tune_config, run_config, resume, resume_config, trust=trust)
    found = experiment_analysis.ExperimentAnalysis(prepared.fit(), default_metric=metric, default_mode=mode)
    failed = [one for one in found.results_grid if one.status is trials.Status.ERROR]
    if failed and raise_on_failed_trial:
        raise errors.TuneError(
            f"{len(failed)} of {len(found.results_grid)} trials failed; the first is {failed[0].trial_id}: "
            f"{failed[0].reason}. Pass raise_on_failed_trial=False to get the results anyway."
        ) from failed[0].error
    return found


def _prepare(
    trainable: object,
    space: Mapping[str, object] | None,
    tune_config: configs.TuneConfig,
    run_config: configs.RunConfig,
    resume: bool | str | None,
    resume_config: configs.ResumeConfig | None,
    *,
    trust: bool,
) -> tuner.Tuner:
    if not isinstance(resume, bool | None) and resume not in RESUME:
        raise ValueError(f"resume must be True, False or one of {list(RESUME)}, but received {resume!r}. Write 'AUTO'.")
    if resume_config is not None and not isinstance(resume_config, configs.ResumeConfig):
        raise TypeError(f"resume_config must be a ResumeConfig, but received {resume_config!r}. Leave it out.")
    if resume in (None, False):
        return tuner.Tuner(trainable, param_space=space, tune_config=tune_config, run_config=run_config)
    if run_config.name is None:
        raise ValueError(
            f"resume={resume!r} needs the name of the search. Write tune.run(..., name='mine', resume=True)."
        )
    home = run_config.locate()
    folder = home.join(run_config.name).path if isinstance(home, places.Place) else home / run_config.name
    filesystem = home.filesystem if isinstance(home, places.Place) else None
    errored = isinstance(resume, str) and "ERRORED" in resume
    if isinstance(resume, str) and resume.startswith("AUTO") and not tuner.Tuner.can_restore(folder, filesystem):
        return tuner.Tuner(trainable, param_space=space, tune_config=tune_config, run_config=run_config)
    return tuner.Tuner.restore(
        folder,
        trainable,
        resume_errored=errored,
        param_space=space,
        storage_filesystem=filesystem,
        tune_config=tune_config,
        run_config=run_config,
        _resume_config=resume_config,
        trust=trust,
    )


def _list_experiments(given: object) -> list[Experiment]:
    if isinstance(given, Experiment):
        return [given]
    if isinstance(given, Mapping):
        known = {one.name for one in fields(Experiment)} - {"name"}
        for name, spec in given.items():
            if not isinstance(spec, Mapping) or "run" not in spec or not known.issuperset(spec):
                raise errors.ExperimentError(
                    f"An experiment must be a dict with the key 'run', and other keys only from {sorted(known)}, but "
                    f"{name!r} is {spec!r}. Write {{{name!r}: {{'run': function, 'config': {{...}}}}}}."
                )
        return [Experiment(name=name, **spec) for name, spec in given.items()]
    if isinstance(given, Sequence) and not isinstance(given, str):
        return [found for one in given for found in _list_experiments(one)]
    raise errors.ExperimentError(
        "experiments must be an Experiment, a list of these, or a dict from names to dicts with the key 'run', but "
        f"received {given!r}. Write run_experiments({{'mine': {{'run': function}}}})."
    )


@keywords.guard
def run_experiments(
    experiments: Experiment | Mapping[str, object] | Sequence[Experiment | Mapping[str, object]],
    scheduler: contract.TrialScheduler | str | None = None,
    verbose: int = 1,
    progress_reporter: reporters.ProgressReporter | None = None,
    resume: bool | str | None = None,
    resume_config: configs.ResumeConfig | None = None,
    reuse_actors: bool | None = None,
    raise_on_failed_trial: bool = True,
    concurrent: bool = False,
    callbacks: Sequence[callback.Callback] = (),
) -> list[result.Result]:
    """Run searches one after another, and return the results of all their trials under the trials' names.

    Args:
        experiments: `Experiment`s, a dict of their fields by name, or a list of these.
        scheduler: The scheduler of the search; allowed for a single one.
        verbose: As in `run`.
        progress_reporter: As in `run`.
        resume: As in `run`.
        resume_config: As in `run`.
        reuse_actors: As in `run`.
        raise_on_failed_trial: As in `run`.
        concurrent: Accepted for programs written for Ray; has no effect.
        callbacks: As in `run`.

    Raises:
        ExperimentError: A dict does not describe an experiment. The class is a `TuneError`.
        ValueError: There are several searches, but one scheduler.
        TuneError: As `run`.

    Example:
        >>> from hocket import tune
        >>> def objective(config):
        ...     return {"score": config["x"] + 1}
        >>> (trial,) = tune.run_experiments({"mine": {"run": objective, "config": {"x": 1}}}, verbose=0)
        >>> trial.last_result["score"], trial.status == tune.experiment.Trial.TERMINATED
        (2, True)
    """
    listed = _list_experiments(experiments)
    if scheduler is not None and len(listed) > 1:
        raise ValueError(
            f"One scheduler cannot compare the trials of {len(listed)} searches. Call run_experiments() for each, with "
            "a scheduler of its own."
        )
    found: list[result.Result] = []
    for one in listed:
        analysis = run(
            one,
            scheduler=scheduler,
            verbose=verbose,
            progress_reporter=progress_reporter,
            resume=resume,
            resume_config=resume_config,
            reuse_actors=reuse_actors,
            raise_on_failed_trial=raise_on_failed_trial,
            callbacks=callbacks,
        )
        found += [_name(one, trial) for trial in analysis.results_grid]
    return found


def _name(experiment: Experiment, ended: result.Result) -> result.Result:
    """Return a trial's result under the name that the trial had."""
    of = program_builder.describe(experiment.run, reuses=False).name
    trial = trials.Trial(ended.trial_id, 0, ended.config, trainable_name=of, status=ended.status)
    name = experiment.trial_name_creator(trial) if experiment.trial_name_creator else f"{of}_{ended.trial_id}"
    return replace(ended, trainable_name=of, name=name)
