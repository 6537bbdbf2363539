"""Errors of parameter servers, sorted by what the caller should do."""

from __future__ import annotations

from hocket import exceptions


class ParameterServerError(exceptions.HocketError):
    """The base class of all errors of parameter servers."""


class NonFiniteGradientError(ParameterServerError, ArithmeticError):
    """A gradient holds NaN or infinity, and the policy is to raise. No part of the push was applied."""


class PushTimeoutError(ParameterServerError, TimeoutError):
    """A pull or a push waited too long for another worker. The message names that worker."""


class CapacityError(ParameterServerError, MemoryError):
    """A variable does not fit into the memory, or an id into its table. The message gives the sizes."""


class CheckpointMismatchError(ParameterServerError, ValueError):
    """A checkpoint does not fit the variables. The message names the variable and both shapes."""


class CheckpointDamagedError(ParameterServerError, ValueError):
    """A checkpoint's files differ from those that were written. The message names the file. Use another checkpoint."""


class ServerLostError(ParameterServerError):
    """A server's memory is gone, because its machine is gone. Start again from a checkpoint."""


class ClosureError(ParameterServerError):
    """A closure could not run, for a reason outside its function."""


class CancelledClosureError(ClosureError):
    """The closure did not run because another closure failed first. TensorFlow calls this ``CancelledError``."""


class JoinTimeoutError(ParameterServerError, exceptions.GetTimeoutError):
    """The time-out ended while closures were still running. They continue."""


class OutOfDataError(ClosureError):
    """The closure did not run, because no worker had an item of the dataset left for it."""


class ClosureFailures(ExceptionGroup):
    """All errors of closures that failed since ``join``, ``done`` or ``schedule`` last raised."""
