"""The budget of a run's failures, by kind of failure."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping

from hocket import exceptions
from hocket._base import texts
from hocket.train import errors

_log = logging.getLogger("hocket.train")


class Budget:
    """The failures that are still allowed. Used by one thread.

    Args:
        limits: The number of allowed failures, by names that the user knows: fields of `FailureConfig`. -1: no limit.
    """

    def __init__(self, limits: Mapping[str, int]) -> None:
        self._limits = limits
        self._spent: Counter[str] = Counter()

    def spend(self, name: str, error: Exception) -> bool:
        """Count a failure, and return whether the run may try again."""
        most, before = self._limits[name], self._spent[name]
        if most != -1 and before >= most:
            return False
        self._spent[name] += 1
        count = f"{before + 1}" if most == -1 else f"{before + 1} of {most}"
        _log.warning(
            "Training is started again from its last commit (failure %s, which %s allows): %s",
            count,
            name,
            texts.escape(str(error)),
        )
        return True

    def explain(self, error: exceptions.HocketError) -> exceptions.HocketError:
        """Return the error to raise when the ranks could not be started, a `ControllerError` after several tries."""
        if not self._spent["controller_failure_limit"]:
            return error
        return errors.ControllerError(error)
