"""Settings that join LightGBM's ranks through memory that they share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn, final

from hocket import keywords
from hocket.train.run import backend, joining, worker_group


@final
@keywords.explained()
@dataclass(frozen=True, kw_only=True)
class LightGBMConfig(backend.BackendConfig):
    """The settings for joining the ranks.

    Raises:
        ValueError: `timeout_s` is not positive.

    Example:
        >>> from hocket.train.lightgbm import LightGBMConfig
        >>> LightGBMConfig(timeout_s=60)
        LightGBMConfig(timeout_s=60)
    """

    timeout_s: float = joining.TIMEOUT_SECONDS
    """Seconds that a rank may wait for the others."""

    def __post_init__(self) -> None:
        joining.check_timeout(self.timeout_s)

    def list_modules(self, function: Callable[..., object]) -> Sequence[str]:
        """Return the module that imports LightGBM, which starts no thread at import."""
        return ("hocket.train.lightgbm",)

    def share_process(self) -> NoReturn:
        """Refuse ranks in one process: LightGBM waits for others in its own code, where no rank can pass its turn on.

        Raises:
            ValueError: Always.
        """
        raise ValueError(
            "LightGBMTrainer needs ranks that are processes: LightGBM waits for the other ranks in its own code, but "
            "the ranks of the in-process engine take turns. Use ScalingConfig(num_workers=1), or open the session with "
            "hocket.init(engine='local')."
        )

    def on_start(self, group: worker_group.WorkerGroup) -> None:
        """Join the ranks."""
        joining.arrange(group, self.timeout_s)

    def on_shutdown(self, group: worker_group.WorkerGroup) -> None:
        """Part the ranks."""
        joining.leave(group)
