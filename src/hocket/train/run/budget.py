"""How often a run may fail, by whose failure it was."""

from __future__ import annotations

import logging

from hocket import exceptions, texts
from hocket.train import configs, errors

_log = logging.getLogger("hocket.train")


class Budget:
    """What is left of the failures that `FailureConfig` allows. Used by one thread.

    Args:
        config: What it allows.
    """

    def __init__(self, config: configs.FailureConfig) -> None:
        self._config = config
        self._spent = {"max_failures": 0, "controller_failure_limit": 0, "max_preemption_failures": 0}

    def spend(self, name: str, error: Exception) -> bool:
        """Count a failure; return whether it may be tried again.

        Args:
            name: The field of `FailureConfig` that says how often.
            error: The failure.
        """
        most, before = getattr(self._config, name), self._spent[name]
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
        """Return what to raise when the start of the ranks has failed for the last time: after several tries, that it was tried."""
        if not self._spent["controller_failure_limit"]:
            return error
        return errors.ControllerError(error)
