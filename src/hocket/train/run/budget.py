"""How often a run may fail, by whose failure it was."""

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
        limits: How many are, by the name that the user knows, such as the fields of `FailureConfig`; -1 is without end.
    """

    def __init__(self, limits: Mapping[str, int]) -> None:
        self._limits = limits
        self._spent: Counter[str] = Counter()

    def spend(self, name: str, error: Exception) -> bool:
        """Count a failure; return whether it may be tried again."""
        most, before = self._limits[name], self._spent[name]
        if most != -1 and before >= most:
            return False
        self._spent[name] += 1
        count = f"{before + 1}" if most == -1 else f"{before + 1} of {most}"
        _log.warning(
            "Training is started again from its last commit (failure %s that %s allows): %s",
            count,
            name,
            texts.escape(str(error)),
        )
        return True

    def explain(self, error: exceptions.HocketError) -> exceptions.HocketError:
        """Return what to raise when the start of the ranks has failed for the last time: after several tries, that
        it was tried."""
        if not self._spent["controller_failure_limit"]:
            return error
        return errors.ControllerError(error)
