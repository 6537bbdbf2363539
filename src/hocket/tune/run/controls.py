"""A scheduler's actions on the trials of a search, besides its decision about the trial that reported."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, final

from hocket.stores import names
from hocket.tune import errors, log
from hocket.tune import trial as trials
from hocket.tune.run import live_trial, retention, settings


class Trials(Protocol):
    """The part of a search that `Controls` needs."""

    settings: settings.Settings
    log: log.Writer
    live: dict[str, live_trial.LiveTrial]
    is_replaying: bool

    def finish(self, live: live_trial.LiveTrial, status: trials.Status, reason: str) -> None:
        """Note that a trial has ended."""

    def register(self, live: live_trial.LiveTrial, name: str) -> None:
        """Register a checkpoint of a trial."""

    def prune(self, live: live_trial.LiveTrial) -> None:
        """Remove the surplus checkpoints of a trial."""


Act: TypeAlias = list[Any]
"""An action on a trial, as in the log: ``["stop", id, reason]``, ``["pause", id]`` or ``["exploit", id, source, config,
tag]``."""


def stop(trial: trials.Trial, reason: str) -> Act:
    """Return the action that ends a trial."""
    return ["stop", trial.trial_id, reason]


def pause(trial: trials.Trial) -> Act:
    """Return the action that pauses a trial."""
    return ["pause", trial.trial_id]


@final
@dataclass(slots=True)
class _Exploit:
    """A takeover under way, which a trial completes after it has left its function."""

    source: str
    """The source trial's id."""
    config: dict[str, object]
    tag: str
    taken: tuple[str, live_trial.SavedCheckpoint] | None = None
    """The source's folder, and its checkpoint at the scheduler's decision, which `prune` keeps. None: the source is
    still to save it, or is the trial itself."""
    has_left: bool = False
    """Whether the trial has left its function, and waits only for that checkpoint."""


@final
class Controls:
    """The `TrialControls` of a search.

    Args:
        search: The search.
    """

    def __init__(self, search: Trials) -> None:
        self._search = search
        self.wants_checkpoint = False
        """Whether the reporting trial is to save a checkpoint."""
        self._collected: list[Act] | None = None
        """The actions requested during a decision about a report; None at other times, when they happen at once."""
        self._exploits: dict[str, _Exploit] = {}
        """The takeovers under way, by the ids of their trials."""
        self._sources: dict[str, tuple[str, live_trial.SavedCheckpoint]] = {}
        """The folder and the latest checkpoint of each finished trial that has one, by id."""
        self._kept: dict[str, live_trial.LiveTrial] = {}
        """Finished trials with a checkpoint that is kept for other trials, by id."""

    def get_trials(self) -> Sequence[trials.Trial]:
        """Return the unfinished trials."""
        return [live.trial for live in self._search.live.values()]

    @contextlib.contextmanager
    def collected(self) -> Iterator[list[Act]]:
        """Yield a list that collects the actions requested in the block. They happen later, after the log has them."""
        self._collected = []
        try:
            yield self._collected
        finally:
            self._collected = None

    def stop_trial(self, trial: trials.Trial) -> None:
        """End a trial: a running one at its next report, another at once."""
        self._take(stop(trial, live_trial.BY_SCHEDULER))

    def save_trial(self, trial: trials.Trial) -> None:
        """Request a checkpoint from the trial that has just reported."""
        self.wants_checkpoint = True

    def exploit(self, trial: trials.Trial, source: trials.Trial, config: dict[str, object], tag: str = "") -> None:
        """Let a trial go on from another trial's latest checkpoint, with a new configuration."""
        if not self._search.is_replaying and not (trial is source and self.wants_checkpoint):
            # Raise now, in the scheduler's call, if the source has no checkpoint.
            self._get_source(source.trial_id)
        self._take(["exploit", trial.trial_id, source.trial_id, config, tag])

    def _take(self, act: Act) -> None:
        if self._collected is not None:
            self._collected.append(act)
        elif not self._search.is_replaying:
            self.perform(act)

    def perform(self, act: Act) -> None:
        """Do an action: on a running trial once it has left its function, on another at once."""
        kind, trial_id, *more = act
        live = self._search.live.get(trial_id)
        if live is None:
            return
        runs = live.trial.status is trials.Status.RUNNING
        if kind == "stop":
            live.fate, live.reason = live_trial.Fate.STOP, more[0]
            if not runs:
                self._search.finish(live, trials.Status.TERMINATED, more[0])
        elif kind == "pause":
            live.fate = live_trial.Fate.PAUSE
        else:
            live.fate = live_trial.Fate.EXPLOIT
            self._exploits[trial_id] = exploit = _Exploit(*more)
            other = self._search.live.get(exploit.source)
            if other is not None and other is not live and other.expects_save:
                other.awaited_by.append(trial_id)  # the source saves the wanted state first
            elif other is not live:
                exploit.taken = self._get_source(exploit.source)
            if not runs:
                self.carry_out_exploit(live)

    def hear_saved(self, trial_id: str) -> None:
        """Note that a trial's source has saved, or has ended without saving."""
        live, exploit = self._search.live.get(trial_id), self._exploits.get(trial_id)
        if live is None or exploit is None:
            return
        exploit.taken = self._get_source(exploit.source)
        if exploit.has_left:
            live.trial.status = trials.Status.PAUSED  # it no longer waits for its source
            self.carry_out_exploit(live)

    def is_taken(self, folder: str, checkpoint: live_trial.SavedCheckpoint) -> bool:
        """Return whether a trial is to go on from this checkpoint of the trial in `folder`."""
        return any(exploit.taken == (folder, checkpoint) for exploit in self._exploits.values())

    def forget(self, live: live_trial.LiveTrial) -> None:
        """Cancel a trial's takeover: it goes on from its own checkpoint."""
        exploit = self._exploits.pop(live.trial.trial_id, None)
        if exploit is not None:
            self._give_up(exploit.source)

    def _give_up(self, source: str) -> None:
        """Remove the checkpoints that a trial kept only for others."""
        other = self._search.live.get(source) or self._kept.get(source)
        if other is not None:
            self._search.prune(other)

    def remember(self, live: live_trial.LiveTrial) -> None:
        """Note the latest checkpoint of a trial that has ended."""
        self.forget(live)
        if any(self.is_taken(live.folder, one) for one in live.checkpoints):
            self._kept[live.trial.trial_id] = live
        if live.latest is not None:
            self._sources[live.trial.trial_id] = live.folder, live.latest

    def _get_source(self, trial_id: str) -> tuple[str, live_trial.SavedCheckpoint]:
        live = self._search.live.get(trial_id)
        if live is not None and live.latest is not None:
            return live.folder, live.latest
        if trial_id in self._sources:
            return self._sources[trial_id]
        raise errors.TuneError(
            f"{type(self._search.settings.scheduler).__name__} wants a trial to go on from a checkpoint of trial "
            f"{trial_id}, which has saved none. Report checkpoints, as in tune.report(metrics, checkpoint=...), or use "
            "a Trainable with save_checkpoint()."
        )

    def carry_out_exploit(self, live: live_trial.LiveTrial) -> None:
        """Give a trial that has left its function the source's checkpoint and its new configuration."""
        search, trial_id = self._search, live.trial.trial_id
        exploit = self._exploits[trial_id]
        if exploit.taken is None and exploit.source != trial_id:
            exploit.has_left = True
            live.trial.status = trials.Status.RUNNING  # so no scheduler chooses it before
            return
        source_folder, latest = exploit.taken or self._get_source(trial_id)
        del self._exploits[trial_id]
        name = f"checkpoint_{live.saved:06d}"
        source_path, target = (
            names.join(search.settings.folder, path, "The log of the search")
            for path in (f"{source_folder}/{latest.name}", f"{live.folder}/{name}")
        )
        target.parent.mkdir(parents=True, exist_ok=True)
        retention.give(source_path, target)
        # Keep only the latest change, or the tag would grow with each takeover.
        tag = live.trial.experiment_tag.partition("@")[0] + exploit.tag
        search.log.append(
            "exploit",
            id=trial_id,
            source=exploit.source,
            config=exploit.config,
            tag=tag,
            checkpoint=name,
            iteration=latest.iteration,
            seconds=latest.seconds,
        )
        self.take_exploit(live, latest, exploit.config, tag, name)
        search.prune(live)
        self._give_up(exploit.source)

    def take_exploit(
        self,
        live: live_trial.LiveTrial,
        latest: live_trial.SavedCheckpoint,
        config: dict[str, object],
        tag: str,
        name: str,
    ) -> None:
        """Set a trial to the checkpoint that it goes on from."""
        live.iteration, live.seconds = latest.iteration, latest.seconds
        live.trial.last_result = dict(latest.metrics) or live.trial.last_result
        self._search.register(live, name)
        live.trial.config, live.trial.experiment_tag = config, tag
        live.resources = self._search.settings.request(config)
        live.trial.status, live.fate = trials.Status.PENDING, None
