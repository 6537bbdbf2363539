"""Gives each rank its part of a data set, batch by batch, from the sample ledger.

A prepared loader is torch's own `DataLoader`, with its workers, collation and pinned memory; only the indices come from
the ledger. torch may fetch indices far ahead, so the loader's cursor moves only when the loop gets a batch.

If a rank's slice of the last batch is short, so is its batch; it is not filled up. A row that is filled in counts twice
in every loop that ignores weights, and most do. Only a rank without any row gets another rank's row, because it must
take the step with the others. The rank is warned if the loop does not read that row's weight.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple, NoReturn, final

import torch
from torch.utils import data

from hocket._base import spending
from hocket._base.internals import datasets
from hocket.data import cursor as cursor_module
from hocket.data import ledger
from hocket.data import loader as loader_module
from hocket.train.frameworks.torch import devices, nested, samplers
from hocket.train.rank import worker_session


def prepare_data_loader(
    data_loader: data.DataLoader[Any],
    add_dist_sampler: bool = True,
    move_to_device: bool = True,
    *,
    name: str | None = None,
    resume: bool = True,
) -> PreparedDataLoader:
    """Return a loader with this rank's part of the rows, on its device.

    The batch size stays the same: with n ranks, n batches are processed at once. They are the ranks' slices of a
    *global batch* of n times the size, drawn from `hocket.data.Ledger`. If the loader shuffles, each epoch has another
    order. It depends on the seed of the loader's generator, or 0, which must be the same in all ranks. Calls of
    ``sampler.set_epoch`` are not needed.

    *The end of an epoch.* All ranks take the same number of steps, and each row is in one batch of one rank. With
    ``drop_last=True`` the rows that fill no global batch are left out. Otherwise the last global batch is short, and so
    are the ranks' batches, by one row more or less. A rank that has no row in it gets another rank's row, with weight
    0, for taking the step. No other row is ever repeated. For an exact average over such a global batch too, multiply
    the mean loss by ``loader.loss_scale``, which is 1 wherever the ranks' batches are equally long. ``loader.weights``
    has 1 for each row of the batch, and 0 for such a filler.

    *Going on.* Each reported checkpoint holds the loader's position. After a restart, with any number of ranks, the
    first loop over the loader goes on there, with the rows that were not handed out. A batch counts as done when the
    loop has it, so report after the step. A loop that counts epochs begins at ``loader.epoch``. Prepare a loader once,
    not in every epoch. To try something, use the original loader: a loop that breaks off leaves its epoch behind.

    The ledger replaces torch's samplers that give each row of a set once: `SequentialSampler`, `RandomSampler` without
    replacement, `SubsetRandomSampler`, and `DistributedSampler` of the same ranks, also inside torch's `BatchSampler`.
    Other samplers, and a user's own batch samplers, are refused if there are several ranks, and kept if there is one.
    An `IterableDataset` is kept with any number of ranks, and must split itself: rank 0 warns unless the caller
    confirms that with ``add_dist_sampler=False``. A loader that is kept has no position: no weights, no ``state_dict``,
    and nothing in checkpoints.

    Args:
        data_loader: The loader that one process alone would use. A subclass's ``__iter__`` is ignored, with a warning.
        add_dist_sampler: Whether to split the rows among the ranks. False leaves the sampler alone.
        move_to_device: Whether to move the batches to the rank's device.
        name: The name of the loader's position in checkpoints. Default: loaders without a name are matched by the order
            in which they are prepared.
        resume: Whether checkpoints hold the position, and restore it. Write False if the training function does that
            itself, with ``state_dict``, or skips the batches that it has seen.

    Raises:
        TypeError: `data_loader` is no DataLoader.
        ValueError: The sampler cannot be split; batches may come in another order; an epoch would have no batch; the
            name is taken, or is no name; or the checkpoint's position is for other rows.
        RuntimeError: The caller is outside a training function.

    Example:
        >>> import tempfile, torch
        >>> from hocket import train
        >>> from hocket.train.torch import TorchTrainer, prepare_data_loader
        >>> def show_rows():
        ...     loader = prepare_data_loader(torch.utils.data.DataLoader(range(7), batch_size=3))
        ...     for batch in loader:
        ...         train.report({"rows": batch.tolist(), "scale": loader.loss_scale})
        >>> result = TorchTrainer(
        ...     show_rows,
        ...     scaling_config=train.ScalingConfig(num_workers=0),  # in this process
        ...     run_config=train.RunConfig(storage_path=tempfile.mkdtemp()),
        ... ).fit()
        >>> [metrics["rows"] for metrics in result.metrics_history]
        [[0, 1, 2], [3, 4, 5], [6]]
    """
    session = worker_session.get_session("torch.prepare_data_loader")
    part, parts = session.batch_part
    _check_loader(data_loader)
    if session.info.rank == 0:
        _warn_of_own_loop(data_loader)
    device = devices.get_device() if move_to_device else None
    if not add_dist_sampler or isinstance(data_loader.dataset, data.IterableDataset):
        if add_dist_sampler and parts > 1 and session.info.rank == 0:
            _warn_of_stream(data_loader.dataset, parts)
        return PreparedDataLoader(data_loader, device)
    batching = samplers.read_batching(data_loader)
    plan = samplers.find_plan(data_loader, batching, part, parts)
    if batching is None or plan is None:
        if parts > 1:
            _refuse_sampler(data_loader, batching, parts)
        return PreparedDataLoader(data_loader, device)
    cursor = _build_cursor(data_loader, batching, plan, session.batch_part)
    if resume:
        session.follow(cursor, name, "prepare_data_loader")
    return PreparedDataLoader(data_loader, device, Rows(cursor, samplers.LedgerSampler(cursor, plan.rows), batching))


def _check_loader(loader: object) -> None:
    if not isinstance(loader, data.DataLoader):
        raise TypeError(
            f"prepare_data_loader() takes a torch.utils.data.DataLoader, but received {type(loader).__name__}: "
            f"{loader!r}. Write prepare_data_loader(DataLoader(dataset, batch_size=32))."
        )
    if isinstance(loader, PreparedDataLoader):
        raise ValueError("The DataLoader is prepared already. Call prepare_data_loader() once for each loader.")


def _warn_of_own_loop(loader: data.DataLoader[Any]) -> None:
    kind = type(loader)
    if kind.__iter__ is data.DataLoader.__iter__ or kind.__module__.startswith("torchdata."):  # with equal batches
        return
    warnings.warn(
        f"{kind.__name__} has an __iter__() of its own, which the prepared loader does not call: it gives the batches "
        "of torch's DataLoader, with the same data set and collate_fn. Move the work of __iter__() into collate_fn, "
        "the data set or the training loop.",
        stacklevel=3,
    )


def _warn_of_stream(dataset: object, world_size: int) -> None:
    if datasets.is_split(dataset):
        return
    warnings.warn(
        f"{type(dataset).__name__} is an IterableDataset, which prepare_data_loader() cannot split, so each of the "
        f"{world_size} ranks reads all rows. Have its __iter__ skip the rows of the other ranks "
        "(get_context().get_world_rank()), and confirm that with add_dist_sampler=False.",
        stacklevel=3,
    )


def _refuse_sampler(loader: data.DataLoader[Any], batching: samplers.Batching | None, world_size: int) -> NoReturn:
    what, own = ("batch_sampler", loader.batch_sampler) if batching is None else ("sampler", batching.sampler)
    raise ValueError(
        f"The DataLoader has its own {what}, {own!r}, which cannot be split among {world_size} ranks without repeating "
        "or losing rows. Split it in the training function with get_context().get_world_rank(), and pass "
        "add_dist_sampler=False; or use shuffle=True, which gives each row once."
    )


def _build_cursor(
    loader: data.DataLoader[Any], batching: samplers.Batching, plan: samplers.SamplerPlan, batch_part: tuple[int, int]
) -> cursor_module.Cursor:
    if not getattr(loader, "in_order", True):  # new in torch 2.6
        raise ValueError(
            "The DataLoader has in_order=False, but its position can be known only if batches come in order. Leave "
            "in_order out, or pass add_dist_sampler=False and split the rows yourself."
        )
    return loader_module.build_cursor(
        "The DataLoader",
        plan.num_rows,
        batching.batch_size,
        *batch_part,
        seed=plan.seed,
        shuffle=plan.shuffle,
        drop_last=batching.drop_last,
    )


class Rows(NamedTuple):
    """The rows of a prepared loader."""

    cursor: cursor_module.Cursor
    sampler: samplers.LedgerSampler
    batching: samplers.Batching


@final
class PreparedDataLoader(loader_module.WeighedLoader, data.DataLoader[Any]):
    """A loader of one rank's batches. Made by `prepare_data_loader`.

    Example:
        >>> import tempfile, torch
        >>> from hocket import train
        >>> from hocket.train.torch import TorchTrainer, prepare_data_loader
        >>> def take_steps():
        ...     loader = prepare_data_loader(torch.utils.data.DataLoader(torch.arange(8.0), batch_size=4, shuffle=True))
        ...     for epoch in range(loader.epoch, 2):  # after a restart, the epoch that was interrupted
        ...         for batch in loader:
        ...             loss = batch.square().mean() * loader.loss_scale  # here backward() would follow
        ...             state = loader.state_dict()
        ...     train.report({"epoch": loader.epoch, "last": (state["epoch"], state["ending"])})
        >>> TorchTrainer(
        ...     take_steps,
        ...     scaling_config=train.ScalingConfig(num_workers=0),
        ...     run_config=train.RunConfig(storage_path=tempfile.mkdtemp()),
        ... ).fit().metrics
        {'epoch': 2, 'last': [2, True]}
    """

    def __init__(
        self,
        loader: data.DataLoader[Any],
        device: torch.device | None,
        rows: Rows | None = None,
    ) -> None:
        super().__init__(loader.dataset, **_list_options(loader, rows))
        if rows is not None and rows.batching.batch_size is not None:
            # As an argument it would hide batch_size, drop_last and sampler, which programs read; torch refuses to
            # assign it.
            self.__dict__["batch_sampler"] = samplers.LedgerBatchSampler(
                rows.sampler, rows.batching.batch_size, rows.batching.drop_last
            )
        self._device = device
        self._cursor = rows.cursor if rows is not None else None

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch promises its own iterator class
        if self._cursor is None:
            return spending.OWN.time_batches(self._move(batch) for batch in super().__iter__())
        loop, parts = self._cursor.begin()
        batches = ((part, self._move(batch)) for batch, part in zip(super().__iter__(), parts, strict=True))
        begun = loader_module.Loop(self._cursor, loop, batches)
        return self._hand_out(lambda: begun)

    def _end_epoch(self) -> None:
        session = worker_session.get_optional_session()
        if session is not None:
            session.watch.end_epoch(self.epoch)

    def _move(self, batch: object) -> object:
        if self._device is None:
            return batch
        device = self._device
        return nested.map_tensors(batch, lambda tensor: tensor.to(device, non_blocking=True))

    @property
    def weights(self) -> torch.Tensor:
        """A weight for each row of the latest batch: 1, or 0 if it was only filled in; on the rank's device.

        Raises:
            RuntimeError: There is no batch yet, or the loader has no ledger.
        """
        return torch.from_numpy(super().weights).to(self._device or "cpu")

    def _get_part(self, asker: str) -> ledger.Slice:
        self._get_cursor(asker)
        return super()._get_part(asker)

    def _get_cursor(self, asker: str) -> cursor_module.Cursor:
        if self._cursor is None:
            raise RuntimeError(
                f"loader.{asker} needs the sample ledger, but this loader keeps an order of its own: it has an "
                "IterableDataset or a sampler that no ledger can describe, or was prepared with "
                "add_dist_sampler=False. Use a data set with a length, and shuffle=True or False."
            )
        return self._cursor


def _list_options(loader: data.DataLoader[Any], rows: Rows | None) -> dict[str, Any]:
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
    if hasattr(loader, "in_order"):  # new in torch 2.6
        options["in_order"] = loader.in_order
    if rows is not None:
        return {
            **options,
            "sampler": rows.sampler,
            "batch_size": rows.batching.batch_size,
            "drop_last": rows.batching.drop_last,
        }
    if loader.batch_size is None and loader.batch_sampler is not None:  # the sampler is the user's own
        return {**options, "batch_sampler": loader.batch_sampler}
    options |= {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    if isinstance(loader.dataset, data.IterableDataset):
        return options
    return {**options, "sampler": loader.sampler}
