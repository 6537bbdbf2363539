"""Population based training: bad trials take over the state of good ones, with changed hyperparameters.

Jaderberg, Dalibard, Osindero, Czarnecki, Donahue, Razavi, Vinyals, Green, Dunning, Simonyan, Fernando and Kavukcuoglu,
"Population Based Training of Neural Networks" (2017): truncation selection, and exploration by resampling or
perturbation.

The scheduler looks at each trial when `perturbation_interval` has passed since its last look. It ranks all trials that
have a score by then. A trial in the lowest quantile takes the checkpoint and the time of a random trial in the highest.
Without ``synch=True`` each trial is handled when its report comes; with it, all trials wait for each other, and are
handled together. A trial that has ended or failed has left the population, and no trial waits for it.

NaN is the lowest score, so a diverged trial takes over another's state. (In Ray it stays as it is.) A trial without a
checkpoint cannot be a source, so functions should save one with each report.

Each change has its own random generator, whose seed is made of the scheduler's seed, the trial's number and its time.
So the same scores lead to the same changes, whatever else happens. Functions among `hyperparam_mutations` may use other
randomness; use domains in searches that must be repeatable.

A search first proposes its trials, and then asks which one runs: the population is all proposed trials, and a trial
pauses only for others that exist.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from hocket import keywords
from hocket.train.tracking import plain
from hocket.tune import errors
from hocket.tune import trial as trials
from hocket.tune.schedulers import checks, contract, fifo, lineage, mutations, pbt_replay


@keywords.guard_init
class PopulationBasedTraining(fifo.FIFOScheduler):
    """A scheduler that lets bad trials go on from the checkpoints of good ones, with changed hyperparameters.

    If there are more trials than can run at once, they take turns. Meant for subclassing.

    Args:
        time_attr: The key of a report's time: any number that grows, and that goes on from a checkpoint's.
        metric: The metric. Default: the search's.
        mode: ``"max"`` or ``"min"``. Default: the search's.
        perturbation_interval: The time between two changes of a trial, in units of `time_attr`.
        burn_in_period: The time before which no trial is changed.
        hyperparam_mutations: The keys of the configuration to change, each with a list of values, a domain
            (`tune.uniform`), a function without arguments, or a dict of these. A trial whose configuration lacks a key
            gets a random value.
        quantile_fraction: The part of the population that counts as bad, and the part that counts as good. 0 to 0.5.
        resample_probability: The probability that a value is sampled again. Otherwise a number is multiplied by a
            factor, a value of a list or of `tune.choice` moves to a neighbour, and a bool stays as it is.
        perturbation_factors: The factors. Whole numbers are rounded afterwards.
        custom_explore_fn: A function from a trial's new configuration to the one that it uses.
        log_config: Whether `policies` are kept.
        require_attrs: Whether a report without the metric or the time is an error. If not, it has no effect.
        synch: Whether all trials wait for each other at each interval.
        seed: The seed of all randomness. Default: the search's.

    Raises:
        ValueError: An argument is out of range, or the metric is unknown at the first trial.
        TypeError: A mutation is none of these, or `custom_explore_fn` cannot be called.
        TuneError: There is nothing to change; or later, a report lacks a required value.

    Example:
        >>> from hocket.tune.schedulers import PopulationBasedTraining
        >>> from hocket.tune.simulation import simulate
        >>> pbt = PopulationBasedTraining(
        ...     "training_iteration", perturbation_interval=2, hyperparam_mutations={"step": [1, 2, 3]}, seed=0
        ... )
        >>> def climb(config, step, height):
        ...     return (height + config["step"],) * 2 if step <= 4 else None
        >>> configs = [{"step": 1}, {"step": 1}, {"step": 1}, {"step": 3}]
        >>> run = simulate(pbt, [climb] * 4, num_workers=4, metric="height", mode="max", configs=configs, state=0)
        >>> [policy.source_tag for policy in pbt.policies]
        ['3']
    """

    looks_ahead = True

    def __init__(
        self,
        time_attr: str = "time_total_s",
        metric: str | None = None,
        mode: str | None = None,
        perturbation_interval: float = 60.0,
        burn_in_period: float = 0.0,
        hyperparam_mutations: Mapping[str, object] | None = None,
        quantile_fraction: float = 0.25,
        resample_probability: float = 0.25,
        perturbation_factors: Sequence[float] = (1.2, 0.8),
        custom_explore_fn: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
        log_config: bool = True,
        require_attrs: bool = True,
        synch: bool = False,
        seed: int | None = None,
    ) -> None:
        checks.check_search(metric, mode, time_attr)
        checks.check_number("perturbation_interval", perturbation_interval, above=0)
        checks.check_number("burn_in_period", burn_in_period, least=0)
        checks.check_number("quantile_fraction", quantile_fraction, least=0, most=0.5)
        checks.check_number("resample_probability", resample_probability, least=0, most=1)
        checks.check_seed(seed)
        _check_exploration(hyperparam_mutations, perturbation_factors, custom_explore_fn)
        self.metric, self.mode = metric, mode
        self._time_attr = time_attr
        self._interval = perturbation_interval
        self._burn_in = burn_in_period
        self._mutations = dict(hyperparam_mutations or {})
        self._quantile = quantile_fraction
        self._resample_probability = resample_probability
        self._factors = tuple(perturbation_factors)
        self._custom_explore = custom_explore_fn
        self._keeps_policies = log_config
        self._requires_attrs = require_attrs
        self._synch = synch
        self._seed = seed
        #: All changes so far, in their order.
        self.policies: list[lineage.Policy] = []
        #: The unfinished trials, in the order in which they were proposed.
        self._members: dict[trials.Trial, _Member] = {}
        #: With `synch`: the time at which all trials wait for each other.
        self._meeting = max(self._interval, self._burn_in)
        self._num_changes = 0
        #: How often a bad trial found no good one with a checkpoint.
        self._num_missed: float = 0

    # --- events -------------------------------------------------------------------------------------------------------

    def complete_config(self, config: Mapping[str, object], number: int) -> dict[str, Any]:
        """Return the configuration of the trial with a number, with random values for missing keys."""
        return mutations.complete(config, self._mutations, self._open_generator("begin", number, 0))

    def on_trial_add(self, controls: contract.TrialControls, trial: trials.Trial) -> None:
        """Add a trial to the population, and complete its configuration."""
        checks.require_metric(self)
        trial.config = self.complete_config(trial.config, trial.number)
        self._members[trial] = _Member(trial.experiment_tag or str(trial.number))

    def on_trial_result(
        self, controls: contract.TrialControls, trial: trials.Trial, result: Mapping[str, object]
    ) -> contract.Decision:
        """Look at a trial if its interval has passed."""
        time, score = checks.read_time(result, self._time_attr), self.get_score(result)
        if time is None or score is None or trial not in self._members:
            self._check_result(trial, result)
            return self.CONTINUE
        member = self._members[trial]
        member.iteration = checks.read_time(result, "training_iteration") or 0
        due = self._meeting if self._synch else max(self._burn_in, member.looked_at + self._interval)
        if time < due:
            return self.CONTINUE
        member.score, member.time = score, time
        self.note_look(trial, time, score)
        if self._synch:
            if not self._waits(self._members):
                self._meet(controls, reporting=trial)
            return self.CONTINUE if self._waits([trial]) else self.PAUSE
        member.looked_at = time
        low, high = self._split()
        if trial in high:
            controls.save_trial(trial)
        elif trial in low:
            self._exploit(controls, trial, high)
        waiting = (trials.Status.PENDING, trials.Status.PAUSED)
        others = (other.status in waiting for other in self._members if other is not trial)
        return self.PAUSE if any(others) else self.CONTINUE

    def on_trial_complete(
        self, controls: contract.TrialControls, trial: trials.Trial, result: Mapping[str, object]
    ) -> None:
        """Remove a finished trial from the population."""
        if trial.checkpoint is None and self._num_missed > 0:
            _log.warning(
                "%s left a trial unchanged %d times, because none of the better trials had a checkpoint. "
                "Report one: tune.report(metrics, checkpoint=...), or write save_checkpoint in a Trainable.",
                type(self).__name__, self._num_missed,
            )  # fmt: skip
            self._num_missed = -math.inf  # one warning is enough
        self._leave(controls, trial)

    def on_trial_error(self, controls: contract.TrialControls, trial: trials.Trial) -> None:
        """Remove a failed trial from the population."""
        self._leave(controls, trial)

    def on_trial_remove(self, controls: contract.TrialControls, trial: trials.Trial) -> None:
        """Remove a trial that was ended from the population."""
        self._leave(controls, trial)

    def choose_trial_to_run(self, controls: contract.TrialControls) -> trials.Trial | None:
        """Return the least advanced waiting trial; with `synch`, only if it is not yet at the meeting."""
        waiting = (trials.Status.PENDING, trials.Status.PAUSED)
        found = [trial for trial in controls.get_trials() if trial.status in waiting and trial in self._members]
        if self._synch:
            found = [trial for trial in found if self._waits([trial])]
        return min(found, key=lambda trial: (self._members[trial].time, trial.number), default=None)

    def _leave(self, controls: contract.TrialControls, trial: trials.Trial) -> None:
        self.note_leave(trial)
        if self._members.pop(trial, None) and self._synch and self._members and not self._waits(self._members):
            self._meet(controls)

    def _check_result(self, trial: trials.Trial, result: Mapping[str, object]) -> None:
        for name in (self._time_attr, self.metric):
            if self._requires_attrs and name is not None and plain.get_metric(result, name) is None:
                raise errors.TuneError(
                    f"{type(self).__name__} needs {name!r} in each report, but trial {trial.trial_id} has reported "
                    f"{sorted(result)}. Report it, or write require_attrs=False to ignore such reports."
                )

    # --- changes ------------------------------------------------------------------------------------------------------

    def _split(self) -> tuple[list[trials.Trial], list[trials.Trial]]:
        """Return the lowest and the highest quantile of the trials that have a score."""
        scored = [(member.score, trial) for trial, member in self._members.items() if member.score is not None]
        scored.sort(key=lambda pair: pair[0])
        count = min(math.ceil(len(scored) * self._quantile), len(scored) // 2)
        ranked = [trial for _, trial in scored]
        return ranked[:count], ranked[len(ranked) - count :]

    def _waits(self, group: Iterable[trials.Trial]) -> bool:
        """Return whether a trial of a group has not reached the meeting."""
        return any(self._members[trial].time < self._meeting for trial in group)

    def _meet(self, controls: contract.TrialControls, reporting: trials.Trial | None = None) -> None:
        """Look at all trials together, and set the next meeting."""
        low, high = self._split()
        for member in self._members.values():
            member.looked_at = member.time
        if reporting in high and reporting is not None:
            controls.save_trial(reporting)
        for trial in low:
            self._exploit(controls, trial, high)
        times = [member.time for member in self._members.values()]
        self._meeting = max(self._meeting + self._interval, *times)
        if min(times) >= self._meeting:  # reports are further apart than the interval
            self._meeting = max(times) + self._interval

    def _exploit(self, controls: contract.TrialControls, trial: trials.Trial, sources: Sequence[trials.Trial]) -> None:
        """Let a trial take over the state of a random source that has a checkpoint, if there is one."""
        member = self._members[trial]
        sources = [source for source in sources if source.checkpoint is not None]
        if not sources:
            self._num_missed += 1
            return
        drawn = self._open_generator("change", trial.number, member.time)
        source = drawn.choice(sources)
        taken = self._members[source]
        config = self._explore(trial, source, drawn)
        if self._keeps_policies:
            self.policies.append(
                lineage.Policy(
                    tag=member.tag,
                    source_tag=taken.tag,
                    time=member.iteration,
                    source_time=taken.iteration,
                    old_config=source.config,
                    new_config=config,
                )
            )
        member.time, member.looked_at, member.iteration = taken.time, taken.looked_at, taken.iteration
        self._num_changes += 1
        controls.exploit(trial, source, config, tag=f"@perturbed{_describe(mutations.keep(config, self._mutations))}")

    def note_look(self, trial: trials.Trial, time: float, score: float) -> None:
        """Called at each look at a trial, before any change. For subclasses."""

    def note_leave(self, trial: trials.Trial) -> None:
        """Called when a trial leaves the population. For subclasses."""

    def change(self, trial: trials.Trial, source: trials.Trial, drawn: random.Random) -> dict[str, Any]:
        """Return the configuration with which a trial goes on from another's checkpoint. For subclasses.

        Args:
            trial: The trial that changes.
            source: The trial with the checkpoint.
            drawn: The random generator.
        """
        return mutations.explore(source.config, self._mutations, drawn, self._resample_probability, self._factors)

    def _explore(self, trial: trials.Trial, source: trials.Trial, drawn: random.Random) -> dict[str, object]:
        changed = self.change(trial, source, drawn)
        if self._custom_explore is None:
            return changed
        explored = self._custom_explore(changed)
        if not isinstance(explored, dict):
            raise errors.TuneError(
                f"custom_explore_fn must return the configuration that a trial goes on with, but returned {explored!r}."
                " End it with `return config`."
            )
        return explored

    def _open_generator(self, purpose: str, number: int, time: float) -> random.Random:
        seed = self._search_seed if self._seed is None else self._seed
        return random.Random(f"{purpose}/{seed}/{number}/{float(time)!r}")

    def debug_string(self) -> str:
        """Return the numbers of trials and of changes."""
        return f"{type(self).__name__}: {len(self._members)} trials, {self._num_changes} changes"


PopulationBasedTrainingReplay = pbt_replay.PopulationBasedTrainingReplay
"""Ray's programs import it from this module."""

_log = logging.getLogger(__name__)


@final
@dataclass(slots=True)
class _Member:
    """The state of a trial of the population."""

    tag: str
    score: float | None = None
    """The score at the last look; None before the first."""
    time: float = 0.0
    """The time at the last look."""
    iteration: float = 0.0
    """The ``training_iteration`` of the latest report."""
    looked_at: float = 0.0
    """The time from which the interval counts."""


def _describe(config: Mapping[str, object]) -> str:
    return "[" + ",".join(f"{key}={value}" for key, value in config.items()) + "]"


def _check_exploration(changes: object, factors: object, explore: object) -> None:
    if not changes and explore is None:
        raise errors.TuneError(
            f"PopulationBasedTraining needs the hyperparameters that it may change, but received {changes!r}. Write "
            "hyperparam_mutations={'lr': tune.loguniform(1e-4, 1e-1)}, or a custom_explore_fn."
        )
    mutations.check(changes or {})
    if explore is not None and not callable(explore):
        raise TypeError(
            "custom_explore_fn must be a function that takes a configuration and returns another, but received "
            f"{explore!r}. Leave it out if the mutations are enough."
        )
    if not isinstance(factors, list | tuple) or not factors or any(checks.read_number(one) is None for one in factors):
        raise ValueError(
            f"perturbation_factors must be numbers, but received {factors!r}. Write perturbation_factors=(1.2, 0.8)."
        )
