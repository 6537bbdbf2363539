"""Settings that join the ranks by XGBoost's own collectives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import NoReturn, final

from hocket import keywords
from hocket.train.frameworks.boosters.xgboost import communicator
from hocket.train.run import backend, joining, worker_group


@final
@keywords.explained()
@dataclass(frozen=True)
class XGBoostConfig(backend.BackendConfig):
    """The settings for joining the ranks.

    Raises:
        ValueError: `timeout_s` is not positive, or the communicator is unknown.

    Example:
        >>> from hocket.train.xgboost import XGBoostConfig
        >>> XGBoostConfig(timeout_s=60)
        XGBoostConfig(xgboost_communicator='rabit', timeout_s=60)
    """

    xgboost_communicator: str = "rabit"
    """For programs written for Ray; ``"rabit"`` is the only communicator."""
    _: KW_ONLY
    timeout_s: float = joining.TIMEOUT_SECONDS
    """Seconds that a rank may wait for the others."""

    def __post_init__(self) -> None:
        joining.check_timeout(self.timeout_s)
        if self.xgboost_communicator != "rabit":
            raise ValueError(
                f"xgboost_communicator must be 'rabit', but received {self.xgboost_communicator!r}. Leave it out."
            )

    def list_modules(self, function: Callable[..., object]) -> Sequence[str]:
        """Return the module that imports XGBoost, which starts no thread at import."""
        return ("hocket.train.xgboost",)

    def share_process(self) -> NoReturn:
        """Refuse ranks in one process: XGBoost waits for others in its own code, where no rank can pass its turn on.

        Raises:
            ValueError: Always.
        """
        raise ValueError(
            "XGBoostTrainer needs ranks that are processes: XGBoost waits for the other ranks in its own code, but the "
            "ranks of the in-process engine take turns. Use ScalingConfig(num_workers=1), or open the session with "
            "hocket.init(engine='local')."
        )

    def on_start(self, group: worker_group.WorkerGroup) -> None:
        """Start the tracker in rank 0, and send its address to all ranks."""
        if len(group) == 1:
            return
        address = joining.find_addresses(group)[0]
        arguments = group.call(0, communicator.start_tracker, address, len(group), self.timeout_s)
        group.execute(communicator.keep, [(arguments, rank) for rank in range(len(group))])

    def on_shutdown(self, group: worker_group.WorkerGroup) -> None:
        """End the tracker."""
        group.execute(communicator.leave, [()] * len(group))
