"""What torch gets for an operation: something to wait for, though most are over already."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import final

import torch
import torch.distributed as dist

from hocket.collective import host_group, point_to_point
from hocket.collective.torch import traffic


@final
class Done(dist.Work):
    """An operation that is over."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._tensors = tensors
        traffic.note_sizes(tensors)

    def wait(self, timeout: dt.timedelta | None = None) -> bool:
        """Return at once."""
        return True

    def is_completed(self) -> bool:
        """It is."""
        return True

    def is_success(self) -> bool:
        """It is: what fails raises in the call itself."""
        return True

    def synchronize(self) -> None:
        """Do nothing: there is no stream."""

    def result(self) -> list[torch.Tensor]:
        """Return the tensors that it was about."""
        return list(self._tensors)

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """Return a future that has these tensors."""
        future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
        future.set_result(list(self._tensors))
        return future


@final
class Message(dist.Work):
    """A message that may be under way."""

    def __init__(
        self,
        group: host_group.HostGroup,
        transfer: point_to_point.Transfer,
        other: int,
        target: torch.Tensor | None = None,
    ) -> None:
        super().__init__()
        self._group = group
        self._transfer = transfer
        self._other = other
        #: What is not contiguous is received beside it, and copied in the end.
        self._target = target
        self._received = torch.from_numpy(transfer.array)
        traffic.note_sizes([self._received])

    def wait(self, timeout: dt.timedelta | None = None) -> bool:
        """Wait until it has been sent, or received."""
        self._group.finish(self._transfer, self._other)
        target, self._target = self._target, None
        if target is not None:
            target.copy_(self._received.view(target.dtype).view(target.shape))
        return True

    def is_completed(self) -> bool:
        """Whether it is over."""
        self._group.messages.progress()
        return self._transfer.is_done

    def is_success(self) -> bool:
        """Whether it is over."""
        return self._transfer.is_done

    def _source_rank(self) -> int:
        return self._other

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """Wait, and return a future that has the tensor."""
        self.wait()
        return Done([self._received]).get_future()
