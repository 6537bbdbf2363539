"""The start of a search from the arguments of its `Tuner`."""

from __future__ import annotations

import contextlib
import pickle
import secrets
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from hocket.core import session
from hocket.stores import trust
from hocket.train import configs as train_configs
from hocket.tune import configs, encoding, errors, log, program_builder, stopper
from hocket.tune.run import hosts, replay, settings
from hocket.tune.run import search as searches
from hocket.tune.schedulers import contract, fifo
from hocket.tune.search import basic_variant, searcher
from hocket.tune.shown import display

T = TypeVar("T")


@dataclass(frozen=True)
class Setup:
    """The arguments of a `Tuner`."""

    trainable: object
    space: Mapping[str, object]
    tune: configs.TuneConfig
    run: configs.RunConfig


def check_space(setup: Setup) -> None:
    """Raise if the space is invalid, or the default searcher refuses it."""
    if setup.tune.search_alg is None:
        _prepare_searcher(basic_variant.BasicVariantGenerator(), setup, 0)


def run(
    setup: Setup,
    folder: Path,
    resume: configs.ResumeConfig,
    follow: Callable[[bool], None] = lambda _: None,
    opener: trust.Opener | None = None,
) -> None:
    """Run a search to its end.

    Args:
        setup: The arguments of the `Tuner`.
        folder: The search's folder.
        resume: The fate of the trials of a search that goes on.
        follow: See `hocket.tune.run.search.Search`.
        opener: Opens pickled values in the log of a search that goes on. Default: the search is new.

    Raises:
        TuneError: The search is new, but the folder has a log; or the log is damaged.
    """
    described = program_builder.describe(setup.trainable, reuses=bool(setup.tune.reuse_actors))
    first = log.check_folder(folder) if opener is not None else {}
    # Build the settings first: bad ones must raise before a file is written.
    given = _build_settings(setup, described, folder, first, trusts=opener is not None and opener.trust)
    with contextlib.closing(log.Writer(folder)) as writer:
        records, kept = list(log.read(folder, opener)), setup.run.checkpoint_config
        if records and opener is None:  # another process made it after `Tuner.fit` looked
            raise errors.TuneError(
                f"Another search has just begun in {str(folder)!r}. Give each search a RunConfig(name=...) of its own."
            )
        writer.append(
            "session",
            version=log.VERSION,
            time=time.time(),
            seed=given.seed,
            prefix=given.prefix,
            name=given.trainable_name,
            metric=given.metric,
            mode=given.mode,
            keeps=[kept.checkpoint_score_attribute, kept.checkpoint_score_order, kept.num_to_keep],
        )
        search = searches.Search(given, writer, follow=follow)
        if records:
            replay.replay(search, records, resume)
        engine = session.get_engine()
        program_builder.prepare(described)
        with display.shown(search):
            counts = {"num_samples": setup.tune.num_samples, "total_num_samples": given.max_trials}
            search.watchers.call_once("setup", stop=setup.run.stop, **counts)
            search.watchers.set_states(replay.find_states(records))
            try:
                if "processes" in engine.limits:
                    hosts.run_here(search, described.program, setup.tune.budget_s)
                else:
                    _run_in_actors(search, described, setup)
                search.close()
                search.watchers.call_at_end()
            except BaseException:
                with contextlib.suppress(errors.TuneError):  # if the log cannot be written, raise the first error
                    search.save_states()
                raise
            search.save_states()
    if search.error is not None:
        raise search.error


def _run_in_actors(search: searches.Search, described: program_builder.Described, setup: Setup) -> None:
    session.get_engine().tasks.expect_work(program_builder.list_modules(described))
    reuses = setup.tune.reuse_actors
    hosts.run_in_actors(
        search,
        described.program,
        reuses=described.is_function if reuses is None else reuses,
        holds=not described.is_trainer,
        most=setup.tune.max_concurrent_trials or None,
        budget_s=setup.tune.budget_s,
        timeout_s=setup.tune.trial_timeout_s,
    )


def _build_settings(
    setup: Setup, described: program_builder.Described, folder: Path, first: Mapping[str, Any], *, trusts: bool
) -> settings.Settings:
    tune, checkpoint = setup.tune, setup.run.checkpoint_config
    seed = first.get("seed") if tune.seed is None else tune.seed
    if seed is None:
        seed = secrets.randbits(32)
    chosen = _prepare_searcher(_take(tune.search_alg) or basic_variant.BasicVariantGenerator(), setup, seed)
    scheduler = _take(tune.scheduler) or fifo.FIFOScheduler()
    _prepare_scheduler(scheduler, tune, seed)
    frequency, saves_at_end = _read_saving(checkpoint, described)
    if described.is_function and (frequency or saves_at_end):
        raise ValueError(
            "checkpoint_frequency and checkpoint_at_end are for classes (Trainable), but the trainable is a function. "
            "Leave them out: a function saves when it calls tune.report(metrics, checkpoint=...)."
        )
    return settings.Settings(
        folder=folder,
        trainable_name=described.name,
        prefix=first.get("prefix") or secrets.token_hex(3),
        metric=tune.metric or scheduler.metric,
        mode=tune.mode or scheduler.mode,
        seed=seed,
        tune=tune,
        run=setup.run,
        space=setup.space,
        searcher=chosen,
        scheduler=scheduler,
        stopper=stopper.build_stopper(setup.run.stop),
        request=described.request,
        max_trials=None if chosen.counts_trials or tune.num_samples == -1 else tune.num_samples,
        window=tune.max_concurrent_trials if tune.deterministic else None,
        saves_on_request=not described.is_function,
        frequency=frequency,
        saves_at_end=saves_at_end,
        trusts=trusts,
    )


_pristine: Final[weakref.WeakKeyDictionary[Any, bytes | str]] = weakref.WeakKeyDictionary()
"""Searchers and schedulers that a search has used, pickled as they were before it; a text if they cannot be pickled."""


def _take(given: T) -> T:
    """Return `given` for its first search, and later a copy of its state before that search, if it can be pickled.

    Always copy an object that `_pristine` cannot hold, such as an instance of a dataclass, which has no hash.
    """
    if given is None:
        return given
    try:
        known = _pristine.get(given)
        if known is None:
            _pristine[given] = encoding.try_pickle(given)
    except TypeError:
        known = encoding.try_pickle(given)
    copied: T = pickle.loads(known) if isinstance(known, bytes) else given
    return copied


def _read_saving(given: train_configs.CheckpointConfig, described: program_builder.Described) -> tuple[int, bool]:
    """Return after how many steps a `Trainable` saves, and whether it saves at its end (default: if it can)."""
    frequency, at_end = 0, None
    if isinstance(given, configs.CheckpointConfig):
        frequency, at_end = given.checkpoint_frequency, given.checkpoint_at_end
    return frequency, described.can_save if at_end is None else at_end


def _prepare_searcher(given: searcher.Searcher, setup: Setup, seed: int) -> searcher.Searcher:
    tune = setup.tune
    done = given.set_search_properties(tune.metric, tune.mode, setup.space, num_samples=tune.num_samples, seed=seed)
    if not done and setup.space:
        raise ValueError(
            f"{type(given).__name__} already has a space, a metric or a mode of its own, but the Tuner received "
            f"param_space={dict(setup.space)!r} and metric={tune.metric!r}. Give them in one place."
        )
    return given


def _prepare_scheduler(given: contract.TrialScheduler, tune: configs.TuneConfig, seed: int) -> None:
    if not given.set_search_properties(tune.metric, tune.mode, seed=seed):
        raise ValueError(
            f"{type(given).__name__} was made with metric={given.metric!r} and mode={given.mode!r}, but TuneConfig has "
            f"metric={tune.metric!r} and mode={tune.mode!r}. Give them in one place."
        )
