"""Errors of parameter servers, sorted by what the caller should do."""

from __future__ import annotations

from hocket import exceptions


class ParameterServerError(exceptions.HocketError):
    """Something with parameter servers. The root of the others."""


class NonFiniteGradientError(ParameterServerError, ArithmeticError):
    """A gradient holds NaN or infinity, and the policy is to raise. Nothing of the push was applied."""


class PushTimeoutError(ParameterServerError, TimeoutError):
    """A pull or a push had to wait too long for another worker. The message says for which."""


class CapacityError(ParameterServerError, MemoryError):
    """A variable does not fit into the memory, or an id into its table. The message has the sizes."""


class CheckpointMismatchError(ParameterServerError, ValueError):
    """A checkpoint does not fit the variables. The message names the variable, and both shapes."""


class CheckpointDamagedError(ParameterServerError, ValueError):
    """A checkpoint is not what was written. The message names the file. Use another one."""


class ServerLostError(ParameterServerError):
    """A server's memory is gone: its machine is. Start again from a checkpoint."""


class ClosureError(ParameterServerError):
    """A closure could not be run, for a reason that is not the function's own."""


class CancelledClosureError(ClosureError):
    """The closure did not run because another one failed before. TensorFlow calls this ``CancelledError``."""


class JoinTimeoutError(ParameterServerError, exceptions.GetTimeoutError):
    """Closures are still running when the time-out ends. They go on."""


class OutOfDataError(ClosureError):
    """The closure did not run, because no worker had an item left for it."""


class ClosureFailures(ExceptionGroup):
    """All errors of the closures that failed since the last ``join``, ``done`` or ``schedule`` that raised."""
