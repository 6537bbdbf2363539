"""A search: its decisions after each event of a trial.

`Search` runs nothing. `hosts` runs trials: it asks the search for the next trial, passes on each event of a trial, and
follows the answer. The log gets each decision before it is carried out, so reading the log into a new `Search`
(`replay`) resumes a search. `controls` has the scheduler's actions on trials.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, final

from hocket.train.checkpoints import checkpoint as checkpoints
from hocket.tune import callback, encoding, errors, log, stopper
from hocket.tune import trial as trials
from hocket.tune.run import controls, live_trial, results, retention, settings, trial_source
from hocket.tune.worker import orders

_GO_ON = orders.Order(orders.Action.GO_ON)
_STOP = orders.Order(orders.Action.STOP)

_STATE_SECONDS: Final = 10.0
"""Seconds between two saves of callbacks' states, as in Ray. States may be large, and most callbacks have none."""


@final
class Search:
    """The state of a search, and its decisions.

    Args:
        given: The search's settings.
        writer: The search's log.
        clock: Returns seconds since 1970.
        follow: Called after each event of a trial, with whether the event brought a checkpoint.
    """

    def __init__(
        self,
        given: settings.Settings,
        writer: log.Writer,
        clock: Callable[[], float] = time.time,
        follow: Callable[[bool], None] = lambda _: None,
    ) -> None:
        self.settings, self.log, self._clock, self._follow = given, writer, clock, follow
        self.live: dict[str, live_trial.LiveTrial] = {}
        self.counts: dict[trials.Status, int] = dict.fromkeys(trials.Status, 0)
        """The number of finished trials by their status."""
        self.iteration = 0
        """The number of events that the search has handled."""
        self.ending = ""
        """Why the search starts no more trials; empty as long as it does."""
        self.error: BaseException | None = None
        """The error that `fit` raises."""
        self.is_replaying = False
        self.controls = controls.Controls(self)
        self.watchers = Watchers(
            given.run.callbacks,
            keeps_trials=bool(given.run.callbacks) or given.run.progress_reporter is not None,
        )
        self.source = trial_source.TrialSource(given, writer, self.live, self.controls, self.watchers.note)
        self.proposals = self.source.proposals

    def choose(self) -> live_trial.LiveTrial | None:
        """Return the trial that begins or goes on next; None if there is none now."""
        return None if self.ending else self.source.choose()

    # --- events of a trial --------------------------------------------------------------------------------------------

    def begin(self, live: live_trial.LiveTrial) -> orders.Assignment:
        """Note that a trial begins or goes on, and return its assignment."""
        live.rewind()
        retention.remove_strays(self.settings.folder / live.folder, [one.name for one in live.checkpoints])
        live.trial.status = trials.Status.RUNNING
        self.log.append(
            "start",
            id=live.trial.trial_id,
            time=self._clock(),
            attempt=live.attempt,
            iteration=live.iteration,
            checkpoint=live.trial.checkpoint,
        )
        live.attempt += 1
        self.tell("on_trial_start", live)
        if live.trial.checkpoint is not None:
            self.tell("on_trial_restore", live)
        return live.build_assignment(self.settings)

    def handle(self, live: live_trial.LiveTrial, event: orders.Event) -> orders.Order | None:
        """Handle an event of a trial, and return the answer if the trial waits for one.

        After `orders.Ended` the trial's status is final, `PAUSED`, or, if it goes on at once, `PENDING`.
        """
        self.iteration += 1
        order = self._take(live, event)
        self._follow(isinstance(event, orders.Report | orders.Saved) and event.checkpoint is not None)
        return order

    def _take(self, live: live_trial.LiveTrial, event: orders.Event) -> orders.Order | None:
        if isinstance(event, orders.Report):
            return self._take_report(live, event)
        if isinstance(event, orders.Introduction):
            self.log.append("process", id=live.trial.trial_id, pid=event.pid, host=event.hostname)
            live.introduction = event
        elif isinstance(event, orders.Saved):
            self.log.append("save", id=live.trial.trial_id, checkpoint=event.checkpoint)
            self.register(live, event.checkpoint)
            self.prune(live)
            self._tell_saved(live, event.checkpoint)
            self._catch_up(live)
        else:
            self._catch_up(live)
            self._leave(live, event)
        return None

    def _take_report(self, live: live_trial.LiveTrial, report: orders.Report) -> orders.Order | None:
        """Decide about a report, and log both in one line: a kill loses both or none."""
        result = live.complete(report, self.settings.metric)
        is_last = report.is_last or bool(report.metrics.get("done"))
        reason = self._find_stop(live, result, is_last=is_last)
        result["done"] = bool(reason)
        live.trial.last_result = result
        if report.checkpoint is not None:
            self.register(live, report.checkpoint)
        self.controls.wants_checkpoint = False
        acts = [controls.stop(live.trial, reason)] if reason else self.decide(live, result)
        self.log.append(
            "report",
            id=live.trial.trial_id,
            metrics=report.metrics,
            time=report.time,
            seconds=report.seconds,
            checkpoint=report.checkpoint,
            acts=acts,
        )
        if report.checkpoint is not None:
            self.prune(live)
            self._tell_saved(live, report.checkpoint)
        self.proposals.hear_report(live.trial, result)
        self.tell("on_trial_result", live, result=result)
        if result.get(results.SHOULD_CHECKPOINT):  # the trial or a callback may set it
            self.controls.wants_checkpoint = True
        live.expects_save = self.controls.wants_checkpoint and self._can_save(report)
        for act in acts:
            self.controls.perform(act)
        if live.fate is live_trial.Fate.PAUSE:  # it must go on from this report
            live.expects_save = self._can_save(report)
        return None if report.is_last else self._build_order(live)

    def _can_save(self, report: orders.Report) -> bool:
        """Return whether a trial can still save the state of its last report."""
        return self.settings.saves_on_request and report.checkpoint is None

    @staticmethod
    def _build_order(live: live_trial.LiveTrial) -> orders.Order:
        if live.fate is live_trial.Fate.STOP:
            return _STOP
        if live.fate is not None:
            return orders.Order(orders.Action.LEAVE, saves=live.expects_save)
        return orders.Order(orders.Action.GO_ON, saves=True) if live.expects_save else _GO_ON

    def _catch_up(self, live: live_trial.LiveTrial) -> None:
        """Let trials go on that wait for a checkpoint of this one."""
        live.expects_save = False
        waiting, live.awaited_by = live.awaited_by, []
        for trial_id in waiting:
            self.controls.hear_saved(trial_id)

    def _find_stop(self, live: live_trial.LiveTrial, result: dict[str, object], *, is_last: bool) -> str:
        """Return why a trial ends at a report whatever its scheduler says; empty if nothing ends it."""
        if is_last:
            return "it returned"
        if live.fate is live_trial.Fate.STOP:  # decided at another trial's report
            return live.reason
        if self.settings.stopper(live.trial.trial_id, result):
            return "a stop rule of the search"
        return self.ending

    def decide(self, live: live_trial.LiveTrial, result: dict[str, object]) -> list[controls.Act]:
        """Get the scheduler's decision about a report; return the actions, on this and other trials."""
        scheduler = self.settings.scheduler
        with self.controls.collected() as acts:
            decision = scheduler.on_trial_result(self.controls, live.trial, result)
        if any(act[1] == live.trial.trial_id for act in acts):  # they override its decision
            return acts
        if decision == scheduler.STOP:
            return [*acts, controls.stop(live.trial, live_trial.BY_SCHEDULER)]
        if decision == scheduler.PAUSE:
            return [*acts, controls.pause(live.trial)]
        if decision not in (scheduler.CONTINUE, scheduler.NOOP):
            raise errors.TuneError(
                f"{type(scheduler).__name__}.on_trial_result() must return CONTINUE, PAUSE, STOP or NOOP, but returned "
                f"{decision!r} for trial {live.trial.trial_id}. Write return self.CONTINUE."
            )
        return acts

    def _tell_saved(self, live: live_trial.LiveTrial, name: str) -> None:
        self.tell("on_trial_save", live)
        self.tell("on_checkpoint", live, checkpoint=checkpoints.Checkpoint(self.settings.folder / live.folder / name))

    def register(self, live: live_trial.LiveTrial, name: str) -> None:
        """Register a checkpoint that belongs to a trial's last report."""
        live.saved += 1
        result = live.trial.last_result
        live.checkpoints.append(live_trial.SavedCheckpoint(name, live.iteration, live.seconds, result))
        live.trial.checkpoint = name

    def prune(self, live: live_trial.LiveTrial) -> None:
        """Remove the surplus checkpoints of a trial."""
        for surplus in retention.choose_surplus(live.checkpoints, self.settings.run.checkpoint_config):
            if self.controls.is_taken(live.folder, surplus):  # another trial still needs it
                continue
            live.checkpoints.remove(surplus)
            if not self.is_replaying:
                retention.remove(self.settings.folder / live.folder, surplus)

    # --- a trial leaves its function ----------------------------------------------------------------------------------

    def _leave(self, live: live_trial.LiveTrial, event: orders.Ended) -> None:
        if event.error is not None:
            self.fail(live, event.error, event.traceback)
        elif live.fate is live_trial.Fate.PAUSE:
            self.log.append("pause", id=live.trial.trial_id)
            live.trial.status, live.fate = trials.Status.PAUSED, None
        elif live.fate is live_trial.Fate.EXPLOIT:
            self.controls.carry_out_exploit(live)
        else:
            self.finish(live, trials.Status.TERMINATED, live.reason or "it returned")

    def fail(self, live: live_trial.LiveTrial, error: BaseException, traceback: str = "") -> None:
        """Handle a trial's failure: try it again, or end it."""
        limit = self.settings.run.failure_config.max_failures
        live.failures += 1
        text = traceback.strip() or f"{type(error).__name__}: {error}"
        if (limit == -1 or live.failures <= limit) and not self.ending:
            if live.fate is live_trial.Fate.STOP and live.reason == live_trial.BY_SCHEDULER:
                # The scheduler has dropped the trial, and would never stop it again.
                self.finish(live, trials.Status.TERMINATED, live.reason, text)
                return
            self.log.append("retry", id=live.trial.trial_id, error=text)
            live.trial.status, live.fate = trials.Status.PENDING, None
            self.controls.forget(live)
            self.tell("on_trial_recover", live)
            return
        self.finish(live, trials.Status.ERROR, f"{type(error).__name__}: {error}".splitlines()[0], text, error)
        fail_fast = self.settings.run.failure_config.fail_fast
        if fail_fast:
            self.ending = f"trial {live.trial.trial_id} failed, and fail_fast is {fail_fast!r}"
            if fail_fast == "raise" and self.error is None:
                self.error = error

    def finish(
        self,
        live: live_trial.LiveTrial,
        status: trials.Status,
        reason: str,
        text: str | None = None,
        error: BaseException | None = None,
    ) -> None:
        """Check a trial's metric, log its end, and pass the news on."""
        was = live.trial.status
        if status is trials.Status.TERMINATED:
            self._check_metric(live)
        self.log.append(
            "end",
            id=live.trial.trial_id,
            status=status.value,
            reason=reason,
            error=text,
            cause=error and encoding.make_portable(error),
        )
        self.note_end(live, status, reason, was)

    def note_end(self, live: live_trial.LiveTrial, status: trials.Status, reason: str, was: trials.Status) -> None:
        """Inform the scheduler, the searcher and the callbacks that a trial has ended."""
        trial = live.trial
        trial.status, trial.reason = status, reason
        is_error = status is trials.Status.ERROR
        scheduler = self.settings.scheduler
        if is_error:
            scheduler.on_trial_error(self.controls, trial)
        elif was is not trials.Status.RUNNING:  # it waited or was paused
            scheduler.on_trial_remove(self.controls, trial)
        elif live.reason != live_trial.BY_SCHEDULER:
            scheduler.on_trial_complete(self.controls, trial, trial.last_result)
        self.proposals.hear_end(trial, is_error=is_error)
        self.counts[status] += 1
        self.tell("on_trial_error" if is_error else "on_trial_complete", live)
        self.controls.remember(live)
        del self.live[trial.trial_id]

    def leave_out(self, live: live_trial.LiveTrial) -> None:
        """Leave a trial as it is, for good."""
        self.settings.scheduler.on_trial_remove(self.controls, live.trial)
        self.proposals.hear_end(live.trial, is_error=True)
        del self.live[live.trial.trial_id]

    def _check_metric(self, live: live_trial.LiveTrial) -> None:
        metric = self.settings.metric
        if metric is None or live.has_metric or live.trial.last_result.get("done") is None:  # it has no report
            return
        found = results.list_reported(live.trial.last_result)
        raise errors.TuneError(
            f"No report of trial {live.trial.trial_id} has the metric {metric!r}; its last one has {found}. Report it, "
            "or give TuneConfig(metric=...) one of these."
        )

    def end(self, reason: str) -> None:
        """Start no more trials; running ones end at their next report."""
        self.ending = self.ending or reason

    @property
    def has_stopper(self) -> bool:
        """Whether a stopper can end the search between reports."""
        return not isinstance(self.settings.stopper, stopper.NoopStopper)

    def ask_stopper(self) -> None:
        """End the search if its stopper decides so."""
        if self.has_stopper and not self.ending and self.settings.stopper.stop_all():
            self.end("a stopper of the search")

    def close(self) -> None:
        """End the paused trials, as nothing runs and nothing can begin; raise if other work is left."""
        if not self.ending:
            for live in list(self.live.values()):
                if live.trial.status is trials.Status.PAUSED:
                    self.finish(live, trials.Status.TERMINATED, "no other trial was left to wait for")
            self.source.check_end()
        self.source.proposals.finish()

    def tell(self, name: str, live: live_trial.LiveTrial, **more: object) -> None:
        """Call a method of all callbacks about a trial."""
        if not self.is_replaying:
            self.watchers.call(name, self.iteration, live.trial, **more)

    def step(self, name: str) -> None:
        """Call a method of all callbacks about no trial."""
        self.watchers.call(name, self.iteration)
        if self.watchers.states_are_due:
            self.save_states()

    def save_states(self) -> None:
        """Log the states of the callbacks."""
        if states := self.watchers.list_states():
            self.log.append("callbacks", states=states)


@final
class Watchers:
    """All callbacks of a search, the user's and the display, called in their order.

    Args:
        callbacks: The user's callbacks.
        keeps_trials: Whether a user's callback or a reporter reads the list of all trials. A display does not.
    """

    def __init__(self, callbacks: Sequence[callback.Callback], *, keeps_trials: bool) -> None:
        self._callbacks, self._keeps = list(callbacks), keeps_trials
        self._users = tuple(callbacks)
        self._states_at = time.monotonic()
        self._trials: list[trials.Trial] = []

    def add(self, one: callback.Callback) -> None:
        """Add a callback after the others."""
        self._callbacks.append(one)

    def note(self, trial: trials.Trial) -> None:
        """Add a trial to the list that callbacks get, if any of them reads it."""
        if self._keeps:
            self._trials.append(trial)

    @property
    def states_are_due(self) -> bool:
        """Whether the states of the user's callbacks are due to be saved again."""
        return bool(self._users) and time.monotonic() - self._states_at > _STATE_SECONDS

    def list_states(self) -> list[list[object]]:
        """Return the class and the state of each of the user's callbacks; an empty list if none has a state."""
        self._states_at = time.monotonic()
        states = [[type(one).__qualname__, one.get_state()] for one in self._users]
        return states if any(state is not None for _, state in states) else []

    def set_states(self, states: Sequence[Sequence[object]]) -> None:
        """Give each callback the state of the callback at its place, if the class is the same."""
        for one, (name, state) in zip(self._users, states, strict=False):
            if state is not None and name == type(one).__qualname__:
                one.set_state(state)

    def call(self, name: str, iteration: int, *about: trials.Trial, **more: object) -> None:
        """Call a method that takes the number of events and all trials."""
        for one in self._callbacks:
            getattr(one, name)(iteration, self._trials, *about, **more)

    def call_once(self, name: str, **info: object) -> None:
        """Call a method that takes neither."""
        for one in self._callbacks:
            getattr(one, name)(**info)

    def call_at_end(self) -> None:
        """Call the method for the search's end."""
        self.call_once("on_experiment_end", trials=self._trials)
