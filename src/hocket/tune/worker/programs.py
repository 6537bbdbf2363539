"""Programs, which run a trial's function or class until it returns or the search ends it."""

from __future__ import annotations

import inspect
import numbers
from collections.abc import Callable
from typing import Any, Final, Protocol, final

from hocket.train.checkpoints import storage
from hocket.train.rank import reports
from hocket.tune import trainable
from hocket.tune.worker import orders, trial_session

DEFAULT_METRIC: Final = "_metric"
"""The metric's name for a function that reports a plain number. Ray's."""


class Program(Protocol):
    """A runner of trials, one after another."""

    def run(self, session: trial_session.TrialSession) -> None:
        """Run a trial until it ends."""


@final
class FunctionProgram:
    """A program that runs a function of a configuration.

    The function's return value is its last report; a generator's values are reports. A number is the metric
    `DEFAULT_METRIC`.
    """

    def __init__(self, function: Callable[..., object]) -> None:
        self._function = function
        self._takes_config = takes_config(function)

    def run(self, session: trial_session.TrialSession) -> None:
        """Run a trial until it ends."""
        returned = self._function(session.assignment.config) if self._takes_config else self._function()
        if inspect.isgenerator(returned):
            for yielded in returned:
                session.report_now(_name_number(yielded))
        elif returned is not None:
            session.post(session.make_report(read_metrics(_name_number(returned)), None, is_last=True))


def _name_number(found: Any) -> Any:
    """Return a report's metrics; give a plain number its name."""
    is_number = isinstance(found, numbers.Real) and not isinstance(found, bool)
    return {DEFAULT_METRIC: found} if is_number else found


@final
class ClassProgram:
    """A program that steps through instances of a `Trainable`."""

    def __init__(self, kind: type[trainable.Trainable], *, reuses: bool) -> None:
        self._kind, self._reuses = kind, reuses
        self._instance: trainable.Trainable | None = None

    def run(self, session: trial_session.TrialSession) -> None:
        """Run a trial until it ends."""
        instance = self._take(session)
        try:
            try:
                self._step(instance, session)
            except trial_session.TrialStopped as stopped:
                if stopped.saves or session.assignment.saves_at_end:
                    session.post(orders.Saved(self._write(instance, session)))
                raise
            if session.assignment.saves_at_end:
                session.post(orders.Saved(self._write(instance, session)))
        except BaseException as error:
            if not self._reuses or not isinstance(error, trial_session.TrialStopped):
                self._drop()
            raise
        if not self._reuses:
            self._drop()

    def _take(self, session: trial_session.TrialSession) -> trainable.Trainable:
        told = session.assignment
        instance, self._instance = self._instance, None
        if instance is not None and not instance.reset_config(told.config):
            instance.stop()
            instance = None
        if instance is None:
            instance = self._kind(told.config)
        else:
            instance.config = told.config
        self._instance = instance
        instance.take_place(
            trial_id=told.trial_id,
            name=told.name,
            logdir=str(session.trial_storage.path),
            resources=told.resources,
            iteration=told.iteration,
            seconds=told.seconds,
            key=told.key,
        )
        if session.checkpoint is not None:
            instance.restore(session.checkpoint, **({"trust": True} if told.trusts else {}))
        return instance

    def _drop(self) -> None:
        instance, self._instance = self._instance, None
        if instance is not None:
            instance.stop()

    def _step(self, instance: trainable.Trainable, session: trial_session.TrialSession) -> None:
        frequency, steps = session.assignment.frequency, 0
        while True:
            metrics = instance.train()
            steps += 1
            name = None
            if frequency and instance.iteration % frequency == 0:
                name = self._write(instance, session)
            order = session.exchange(session.make_report(read_metrics(metrics), name))
            if order.saves and name is not None:  # this very state is saved already
                order = orders.Order(order.action)
            if order.action is orders.Action.GO_ON and order.saves:
                session.post(orders.Saved(self._write(instance, session)))
            session.obey(order)
            if metrics.get(trainable.DONE):
                return

    @staticmethod
    def _write(instance: trainable.Trainable, session: trial_session.TrialSession) -> str:
        with session.rank.open_folder() as folder:
            instance.save(folder)
            staged = storage.stage(session.trial_storage, f"saved-{session.saved}", folder)
        return session.commit(staged, None, {})


def read_metrics(given: object) -> dict[str, object]:
    """Return metrics as plain data."""
    return reports.Report(0, reports.encode_metrics(given), None, None).read_metrics()


def takes_config(function: Callable[..., object]) -> bool:
    """Return whether a function takes the configuration; raise ValueError if it needs more arguments."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some built-in functions have no signature
        return True
    try:
        signature.bind({})
    except TypeError:
        pass
    else:
        return True
    try:
        signature.bind()
    except TypeError:
        name = getattr(function, "__name__", repr(function))
        raise ValueError(
            f"A trial's function takes one argument, the configuration, but `{name}` takes {signature}. Give the "
            "others by tune.with_parameters(function, name=value), or put them into param_space."
        ) from None
    return False
