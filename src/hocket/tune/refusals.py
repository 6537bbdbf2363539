"""Names of Ray Tune that are not here, and what to write instead: importing one says so."""

from __future__ import annotations

from typing import Final, NoReturn

TABLE: Final = {
    "SyncConfig": "leave it out: files are written where they belong, RunConfig(storage_path=...)",
    "register_env": "environments are for reinforcement learning, which is not here; make one in the trial's function",
}


def refuse(name: str) -> NoReturn:
    """Raise for a name that is not here.

    Raises:
        ImportError: It is one of Ray's; the message says what to write.
        AttributeError: It is nobody's.
    """
    if name in TABLE:
        raise ImportError(f"hocket.tune has no {name}, which Ray Tune has: {TABLE[name]}.")
    raise AttributeError(f"module 'hocket.tune' has no attribute {name!r}")
