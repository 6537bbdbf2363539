"""The source of trials: the searcher proposes them, and the scheduler chooses the next one."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from hocket._base import texts
from hocket.stores import names
from hocket.tune import errors, log
from hocket.tune import trial as trials
from hocket.tune.run import live_trial, proposals, settings
from hocket.tune.schedulers import contract
from hocket.tune.search import variants


@final
class TrialSource:
    """The source of a search's next trials: it proposes new trials, and chooses among those that wait.

    Args:
        given: The search's settings.
        writer: The search's log.
        live: The search's unfinished trials by id, to which new ones are added.
        controls: The scheduler's controls.
        note: Called with each new trial.
    """

    def __init__(
        self,
        given: settings.Settings,
        writer: log.Writer,
        live: dict[str, live_trial.LiveTrial],
        controls: contract.TrialControls,
        note: Callable[[trials.Trial], None],
    ) -> None:
        self._settings, self._log, self._live, self._controls = given, writer, live, controls
        self._note = note
        self.proposals = proposals.Proposals(given.searcher, given.window)
        self.num_proposed = 0
        self._folders: set[str] = set()

    def choose(self) -> live_trial.LiveTrial | None:
        """Return the trial that begins or goes on next; None if there is none now."""
        scheduler = self._settings.scheduler
        if scheduler.looks_ahead:
            self._look_ahead(None)
        chosen = self._ask_scheduler()
        while chosen is None and not self._has_pending() and self._propose():
            chosen = self._ask_scheduler()
        if chosen is not None and scheduler.looks_ahead:
            self._look_ahead(chosen.trial)
        return chosen

    def _ask_scheduler(self) -> live_trial.LiveTrial | None:
        scheduler = self._settings.scheduler
        chosen = scheduler.choose_trial_to_run(self._controls)
        if chosen is None:
            return None
        live = self._live.get(getattr(chosen, "trial_id", ""))
        if live is None or not live.waits:
            raise errors.TuneError(
                f"{type(scheduler).__name__}.choose_trial_to_run() must return a trial that is PENDING or PAUSED, or "
                f"None, but returned {chosen!r}."
            )
        return live

    def _has_pending(self, but: trials.Trial | None = None) -> bool:
        pending = trials.Status.PENDING
        return any(live.trial.status is pending and live.trial is not but for live in self._live.values())

    def _look_ahead(self, chosen: trials.Trial | None) -> None:
        """Propose a trial unless another than the chosen one waits already."""
        if not self._has_pending(but=chosen):
            self._propose()

    @property
    def is_exhausted(self) -> bool:
        """Whether no more trials will be proposed."""
        most = self._settings.max_trials
        return self.proposals.is_finished or (most is not None and self.num_proposed >= most)

    def _propose(self) -> bool:
        number = self.num_proposed
        if self.is_exhausted or not self.proposals.can_propose(number):
            return False
        trial_id = f"{self._settings.prefix}_{number:05d}"
        config = self.proposals.propose(number, trial_id)
        if config is None:
            return False
        trial = trials.Trial(trial_id, number, config, self.build_tag(number, config))
        folder = self.add(trial).folder
        self._log.append(
            "trial", id=trial_id, number=number, config=trial.config, tag=trial.experiment_tag, folder=folder
        )
        return True

    def build_tag(self, number: int, config: dict[str, object]) -> str:
        """Return a trial's number and the values that were chosen for it."""
        values = variants.format_tag(variants.find_values(self._settings.space, config))
        return f"{number}_{values}" if values else str(number)

    def add(self, trial: trials.Trial, folder: str | None = None) -> live_trial.LiveTrial:
        """Add a new trial to the search."""
        trial.trainable_name = self._settings.trainable_name
        trial.name = name = f"{self._settings.trainable_name}_{trial.trial_id}"
        if self._settings.tune.trial_name_creator is not None:
            trial.name = name = str(self._settings.tune.trial_name_creator(trial))
        if folder is None:
            creator = self._settings.tune.trial_dirname_creator
            folder = name if creator is None else str(creator(trial))
            fault = names.find_folder_fault(folder)
            if fault is not None:
                raise ValueError(
                    "trial_dirname_creator, or trial_name_creator without it, must return the name of one folder, but "
                    f"returned {texts.safe_repr(folder)} for trial {trial.trial_id}: {fault}."
                )
            if folder not in self._folders and (self._settings.folder / folder).is_dir():
                folder = f"{folder}_{self._settings.prefix}"  # an earlier search has a trial of this name
        if folder in self._folders:
            raise ValueError(
                "Each trial needs a folder of its own, but trial_name_creator or trial_dirname_creator returned "
                f"{folder!r} for trial {trial.trial_id}, and another trial has that folder. Have the name contain "
                "trial.trial_id."
            )
        self._folders.add(folder)
        trial.path = f"{self._settings.folder}/{folder}"
        found = live_trial.LiveTrial(trial, name, folder, self._settings.request(trial.config))
        self._live[trial.trial_id] = found
        self._note(trial)
        self.num_proposed = trial.number + 1
        self._settings.scheduler.on_trial_add(self._controls, trial)
        return found

    def check_end(self) -> None:
        """Raise if trials are left or to come, but nothing runs or can begin."""
        if self._live:
            raise errors.TuneError(
                f"{type(self._settings.scheduler).__name__}.choose_trial_to_run() returned None, but no trial is "
                f"running, and {len(self._live)} trials wait to begin, such as {next(iter(self._live))}. Have it "
                "return one of them."
            )
        if not self.is_exhausted:
            raise errors.TuneError(
                f"{type(self._settings.searcher).__name__}.suggest() returned None, but no trial is running whose "
                "result it could wait for. Have it return a configuration, or Searcher.FINISHED."
            )
