"""First in, first out: all trials run, in the order in which they were proposed."""

from __future__ import annotations

from hocket.tune import trial as trials
from hocket.tune.schedulers import contract


class FIFOScheduler(contract.TrialScheduler):
    """A scheduler that runs all trials to their end, in the order in which they were proposed.

    It is the default, and a base for other schedulers.

    Example:
        >>> from hocket.tune.schedulers import FIFOScheduler
        >>> FIFOScheduler().debug_string()
        'FIFOScheduler'
    """

    #: The search's seed.
    _search_seed: int = 0

    looks_ahead = False

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: object) -> bool:
        """Take the search's metric, mode and seed.

        Returns:
            False if the scheduler was made with another metric or mode.
        """
        if any(mine and given and mine != given for mine, given in ((self.metric, metric), (self.mode, mode))):
            return False
        self.metric, self.mode = self.metric or metric, self.mode or mode
        seed = spec.get("seed")
        if isinstance(seed, int):
            self._search_seed = seed
        return True

    def choose_trial_to_run(self, controls: contract.TrialControls) -> trials.Trial | None:
        """Return the first pending trial; else the first paused one; None if there is neither."""
        paused = None
        for trial in controls.get_trials():
            if trial.status is trials.Status.PENDING:
                return trial
            if paused is None and trial.status is trials.Status.PAUSED:
                paused = trial
        return paused
