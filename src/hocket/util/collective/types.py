"""Ray's names for the types that `hocket.util.collective` takes."""

from __future__ import annotations

from hocket.collective.arithmetic import ReduceOp as ReduceOp


class Backend:
    """Names of backends. ``Backend("gloo")`` returns the name itself, as in Ray."""

    NCCL = "NCCL"
    GLOO = "GLOO"

    def __new__(cls, name: str) -> str:  # type: ignore[misc]  # as in Ray, its calls return text
        """Return a backend's name in capitals."""
        return name.upper()
