"""Gives each rank its part of a data set, batch by batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, final

import torch
from torch.utils import data
from torch.utils.data import distributed

from hocket.train import worker_session
from hocket.train.torch import devices

_SEED_MASK = (1 << 62) - 1  # a generator's seed may have 64 bits; adding the epoch to it must not overflow


def prepare_data_loader(
    data_loader: data.DataLoader[Any], add_dist_sampler: bool = True, move_to_device: bool = True
) -> data.DataLoader[Any]:
    """Return a loader with this rank's part of the samples, on its device.

    The batch size stays what it is: with n ranks, n batches are worked on at once. If the loader shuffles, each epoch has another
    order, without a call of ``sampler.set_epoch``; that may still be called, to continue from an epoch after a restart.

    As in torch's DistributedSampler, a data set that the ranks cannot share evenly is filled up with its first samples.

    Args:
        data_loader: What one process alone would use.
        add_dist_sampler: Whether to split the samples among the ranks. False leaves the sampler alone. There is nothing to split
            with one rank, nor for an iterable data set, which must do it itself.
        move_to_device: Whether to move the batches to the rank's device.

    Raises:
        ValueError: The loader has a batch sampler of its own, which cannot be split.
        RuntimeError: It is called outside a training function.
    """
    info = worker_session.get_session("torch.prepare_data_loader").info
    device = devices.get_device() if move_to_device else None
    splits = add_dist_sampler and info.world_size > 1 and not isinstance(data_loader.dataset, data.IterableDataset)
    sampler = _build_sampler(data_loader, info) if splits else None
    return PreparedDataLoader(data_loader, sampler, device)


def _build_sampler(loader: data.DataLoader[Any], info: worker_session.RankInfo) -> distributed.DistributedSampler[Any]:
    if loader.batch_sampler is not None and type(loader.batch_sampler) is not data.BatchSampler:
        raise ValueError(
            f"The DataLoader has its own batch_sampler, {loader.batch_sampler!r}, which cannot be split among {info.world_size} "
            "ranks. Split it in the training function with get_context().get_world_rank(), and pass add_dist_sampler=False."
        )
    generator = loader.generator
    return distributed.DistributedSampler(
        loader.dataset,
        num_replicas=info.world_size,
        rank=info.rank,
        shuffle=not isinstance(loader.sampler, data.SequentialSampler),
        seed=generator.initial_seed() & _SEED_MASK if generator is not None else 0,
    )


@final
class PreparedDataLoader(data.DataLoader[Any]):
    """A copy of a loader that splits, orders anew each epoch, and moves batches. Made by `prepare_data_loader`."""

    def __init__(
        self,
        loader: data.DataLoader[Any],
        sampler: distributed.DistributedSampler[Any] | None,
        device: torch.device | None,
    ) -> None:
        super().__init__(loader.dataset, **_list_options(loader, sampler))
        self._dist_sampler = sampler
        self._device = device
        self._next_epoch = 0
        self._set_epoch = 0

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch promises its own iterator class
        self._begin_epoch()
        batches = super().__iter__()
        if self._device is None:
            return batches
        return (_move(batch, self._device) for batch in batches)

    def _begin_epoch(self) -> None:
        sampler = self._dist_sampler
        if sampler is None:
            return
        if sampler.epoch != self._set_epoch:  # the user has set it since
            self._next_epoch = sampler.epoch
        sampler.set_epoch(self._next_epoch)
        self._set_epoch = self._next_epoch
        self._next_epoch += 1


def _list_options(loader: data.DataLoader[Any], sampler: distributed.DistributedSampler[Any] | None) -> dict[str, Any]:
    """Return the arguments that make a copy of a loader."""
    options: dict[str, Any] = {
        "num_workers": loader.num_workers,
        "collate_fn": loader.collate_fn,
        "pin_memory": loader.pin_memory,
        "timeout": loader.timeout,
        "worker_init_fn": loader.worker_init_fn,
        "multiprocessing_context": loader.multiprocessing_context,
        "generator": loader.generator,
        "prefetch_factor": loader.prefetch_factor,
        "persistent_workers": loader.persistent_workers,
    }
    if sampler is not None:
        return {**options, "batch_size": loader.batch_size, "drop_last": loader.drop_last, "sampler": sampler}
    if isinstance(loader.dataset, data.IterableDataset):
        return {**options, "batch_size": loader.batch_size, "drop_last": loader.drop_last}
    if loader.batch_sampler is not None:
        return {**options, "batch_sampler": loader.batch_sampler}
    return {**options, "batch_size": None, "sampler": loader.sampler}


def _move(batch: Any, device: torch.device) -> Any:
    """Return a batch with every tensor in it on the device."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return {key: _move(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_move(value, device) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(_move(value, device) for value in batch)
    return batch
