"""The bytes that `sharded` moves and keeps in a rank: counted, and predicted from the layouts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Final, final

import torch
import torch.distributed as dist
from torch.distributed import tensor as torch_tensor
from torch.optim import optimizer as torch_optimizer

from hocket.collective import torch as collective_torch
from hocket.collective.torch import traffic
from hocket.mesh import relayouts
from hocket.train.rank import usage

GATHERED: Final = "gathered"
GATHERED_AGAIN: Final = "gathered again"
REDUCED: Final = "reduced"
COMPARED: Final = "compared"
"""The ranks' comparison before a step: a few bytes, which no figure includes."""


@final
class Meter:
    """The counts of one rank, from the spreading of its model to the last step of an optimizer with its parameters."""

    def __init__(self) -> None:
        self._now = dict.fromkeys((GATHERED, GATHERED_AGAIN, REDUCED, COMPARED), 0)
        self._start = traffic.read()
        self._at_last: tuple[dict[str, int], dict[str, int]] = (dict(self._now), dict(self._start))
        """The bytes received until the last step: by purpose, and by kind of collective."""
        self.steps = 0
        """The number of steps that optimizers with the parameters have taken."""
        self._kept: dict[int, tuple[int, int]] = {}
        """For each optimizer, after its first step: the bytes of gradients, and of its state."""
        self._parameters: list[torch.nn.Parameter] = []
        self._predicted = usage.ShardingBytes(parameters=0, gradients=0, gathered=0, reduced=0)

    @contextlib.contextmanager
    def count(self, purpose: str) -> Iterator[None]:
        """Count the bytes that are received during a block."""
        before = traffic.read_total()
        yield
        self._now[purpose] += traffic.read_total() - before

    def predict(self, parameters: Sequence[torch.nn.Parameter], plans: Sequence[Sequence[relayouts.Plan]]) -> None:
        """Set the parameters, and predict their bytes.

        Args:
            parameters: The model's stored parameters.
            plans: For each use of a parameter in a layer, the plans that put it together and add up its gradient.
        """
        self._parameters = list(parameters)
        self._predicted = usage.ShardingBytes(
            parameters=_sum_bytes(self._parameters),
            gradients=_sum_bytes([one for one in self._parameters if one.requires_grad]),
            gathered=sum(gather.num_bytes for gather, *_ in plans),
            reduced=sum(reduce.num_bytes for _, *reduced in plans for reduce in reduced),
        )

    def follow_steps(self) -> contextlib.AbstractContextManager[object]:
        """Count each step of an optimizer that has the parameters, until the returned context is left."""
        mine = set(self._parameters)

        def look(stepped: torch.optim.Optimizer, args: object, kwargs: object) -> None:
            own = [one for group in stepped.param_groups for one in group["params"] if one in mine]
            if own:
                if id(stepped) not in self._kept:  # once: it takes milliseconds, and later steps keep as much
                    states = [value for one in own for value in stepped.state.get(one, {}).values()]
                    self._kept[id(stepped)] = _sum_bytes([one.grad for one in own]), _sum_bytes(states)
                self.steps += 1
                self._at_last = dict(self._now), traffic.read()

        following = contextlib.ExitStack()
        following.callback(torch_optimizer.register_optimizer_step_post_hook(look).remove)
        return following

    def tell(self) -> usage.ShardingUsage:
        """Return the counts as a usage."""
        purposes, kinds = dict(self._at_last[0]), dict(self._at_last[1])
        kinds["all-gather"] -= purposes.pop(COMPARED)
        steps = max(self.steps, 1)
        received = {kind: (count - self._start[kind]) // steps for kind, count in kinds.items()}
        is_counted = self.steps > 0 and dist.get_backend() == collective_torch.NAME
        measured = usage.ShardingBytes(
            parameters=_sum_bytes(self._parameters),
            gradients=sum(slopes for slopes, _ in self._kept.values()),
            gathered=purposes[GATHERED] // steps,
            reduced=purposes[REDUCED] // steps,
        )
        return usage.ShardingUsage(
            predicted=self._predicted,
            measured=measured if is_counted else None,
            steps=self.steps,
            gathered_again=purposes[GATHERED_AGAIN] // steps,
            other=sum(received.values()) - sum(purposes.values()) // steps,
            received=received,
            optimizer=sum(state for _, state in self._kept.values()),
            peak_memory=usage.read_peak_memory(),
        )


def _sum_bytes(values: Sequence[object]) -> int:
    """Return the bytes of tensors that this rank has. Other values count as 0."""
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    locals_ = [value.to_local() if isinstance(value, torch_tensor.DTensor) else value for value in tensors]
    return sum(value.numel() * value.element_size() for value in locals_)
