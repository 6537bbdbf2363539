"""One trial with a schedule of configurations that population based training has found."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, final

from hocket import keywords
from hocket.tune import trial as trials
from hocket.tune.schedulers import checks, contract, fifo, lineage


@keywords.guard_init
@final
class PopulationBasedTrainingReplay(fifo.FIFOScheduler):
    """A scheduler that runs one trial with the successive configurations of a population's trial and its sources.

    The search has one trial. It begins with the schedule's first configuration, instead of its own. At each change it
    goes on from its own checkpoint, so functions should save one with each report.

    Args:
        policy_file: `PopulationBasedTraining.policies`, of which the last one's trial is replayed (use `trace` for
            another); rows in Ray's form; or a path to a file with one such row a line, Ray's
            ``pbt_policy_<trial>.txt``.

    Raises:
        ValueError: The file does not exist or has invalid rows, a second trial comes, or there is no configuration.

    Example:
        >>> from hocket.tune.schedulers import PopulationBasedTrainingReplay
        >>> from hocket.tune.simulation import simulate
        >>> replay = PopulationBasedTrainingReplay([["1", "0", 3, 2, {"lr": 0.1}, {"lr": 0.2}]])
        >>> def learn(config, step, state):
        ...     return (config["lr"], None) if step <= 4 else None
        >>> run = simulate(replay, [learn], metric="lr", mode="max")
        >>> [result["lr"] for result in run.trials[0].results]
        [0.1, 0.1, 0.2, 0.2]
    """

    looks_ahead = True

    def __init__(self, policy_file: str | pathlib.Path | Sequence[lineage.Policy | Sequence[object]]) -> None:
        policies = lineage.read(policy_file)
        traced = lineage.trace(policies, policies[-1].tag) if policies else []
        #: The trial's first configuration; None if there was no change.
        self.config: dict[str, Any] | None = traced[0].old_config if traced else None
        self._changes = [(policy.source_time, policy.new_config) for policy in traced]
        self._next = 0
        self._trial: trials.Trial | None = None

    def on_trial_add(self, controls: contract.TrialControls, trial: trials.Trial) -> None:
        """Give the trial the first configuration."""
        if self._trial is not None:
            raise ValueError(
                "PopulationBasedTrainingReplay runs one trial, because more trials would only repeat it, but received "
                f"{trial.trial_id} after {self._trial.trial_id}. Write TuneConfig(num_samples=1), without a grid."
            )
        if self.config is None and not trial.config:
            raise ValueError(
                "PopulationBasedTrainingReplay has no policies, and the trial has no configuration. Give "
                "the Tuner a param_space, or leave the scheduler out."
            )
        self._trial = trial
        if self.config is None:
            self.config = dict(trial.config)
        else:
            trial.config = dict(self.config)

    def on_trial_result(
        self, controls: contract.TrialControls, trial: trials.Trial, result: Mapping[str, object]
    ) -> contract.Decision:
        """Change the configuration when a change is due; if several are, make only the last one."""
        time = checks.read_time(result, "training_iteration")
        begun = self._next
        while time is not None and self._next < len(self._changes) and self._changes[self._next][0] <= time:
            self._next += 1
        if self._next > begun:
            controls.save_trial(trial)
            controls.exploit(trial, trial, dict(self._changes[self._next - 1][1]), tag=f"@replay[{self._next}]")
        return self.CONTINUE

    def debug_string(self) -> str:
        """Return how many of the changes are made."""
        return f"PopulationBasedTrainingReplay: {self._next} of {len(self._changes)} changes"
