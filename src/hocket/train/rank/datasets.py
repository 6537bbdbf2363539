"""Datasets for training: executed once before the ranks start; each rank reads its own part.

The ledger needs the number of rows before the first step, and reads rows in any order, anew in each epoch. So the rows
are made once and stay with the engine, which spills blocks that memory cannot hold. Ranks get references to the blocks.
(Design note 0009 has measurements of the alternatives.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, final

from hocket import data, keywords
from hocket._base import texts
from hocket.core import session as session_module
from hocket.train.rank import worker_session

if TYPE_CHECKING:
    from hocket.data import execution

TRAIN_DATASET_KEY = "train"
"""The conventional name of the dataset to train on, as in Ray."""


@final
@keywords.explained()
@dataclass(frozen=True)
class DataConfig:
    """The settings for a trainer's datasets.

    Args:
        datasets_to_split: The names of the datasets that are split over the ranks. Each rank gets all rows of the
            others. Default: ``"all"``.
        execution_options: The limits on concurrent work while the datasets are made. Default:
            `DataContext.execution_options`.
        enable_shard_locality: For programs written for Ray. It has no effect, because all ranks of a machine share the
            memory that holds the blocks.

    Raises:
        TypeError: An argument has the wrong type.

    Example:
        >>> from hocket import train
        >>> train.DataConfig(datasets_to_split=["train"]).datasets_to_split
        ['train']
    """

    datasets_to_split: Literal["all"] | Sequence[str] = "all"
    execution_options: data.ExecutionOptions | None = None
    enable_shard_locality: bool = True

    def __post_init__(self) -> None:
        names: object = self.datasets_to_split
        if names != "all" and (
            isinstance(names, str)
            or not isinstance(names, Sequence)
            or not all(isinstance(name, str) for name in names)
        ):
            raise TypeError(
                f"datasets_to_split must be 'all' or a list of names, but received {names!r}. Write "
                "datasets_to_split=['train']."
            )
        if self.execution_options is not None and not isinstance(self.execution_options, data.ExecutionOptions):
            raise TypeError(
                f"execution_options must be an ExecutionOptions, but received {self.execution_options!r}. Write "
                "execution_options=hocket.data.ExecutionOptions(max_blocks_in_flight=8)."
            )


@final
@dataclass(frozen=True, kw_only=True)
class Supply:
    """A dataset as a rank gets it."""

    source: execution.Source
    is_split: bool
    """Whether each rank gets only its part of the rows."""


def check(datasets: object, config: object) -> tuple[dict[str, data.Dataset], DataConfig]:
    """Check a trainer's arguments, and return them with defaults filled in."""
    if config is not None and not isinstance(config, DataConfig):
        raise TypeError(
            f"dataset_config must be a DataConfig, but received {config!r}. Write "
            "dataset_config=hocket.train.DataConfig(...)."
        )
    if datasets is not None and not isinstance(datasets, Mapping):
        raise TypeError(
            f"datasets must be a dict of datasets by name, but received {datasets!r}. Write datasets={{'train': "
            "dataset}, and get_dataset_shard('train') in the training function."
        )
    found = dict(datasets or {})
    for name, one in found.items():
        if not isinstance(name, str) or not name:
            raise TypeError(
                f"datasets must be a dict of datasets by name, but one has the name {name!r}. Write "
                "datasets={'train': dataset}."
            )
        if not isinstance(one, data.Dataset):
            raise TypeError(
                f"datasets[{name!r}] must be a hocket.data.Dataset, but is {texts.name_kind(one)}: {one!r:.80}. Make "
                "one with hocket.data.from_items(), from_numpy() or read_parquet(); for a torch data set, use "
                "prepare_data_loader() in the training function."
            )
    config = config or DataConfig()
    missing = (
        [] if config.datasets_to_split == "all" else [name for name in config.datasets_to_split if name not in found]
    )
    if missing:
        raise ValueError(
            f"datasets_to_split names {', '.join(map(repr, missing))}, but the datasets are "
            f"{', '.join(map(repr, found)) or 'none'}. Name those that are in datasets=."
        )
    return found, config


def prepare(datasets: Mapping[str, data.Dataset], config: DataConfig, *, stays_here: bool) -> dict[str, Supply]:
    """Make the rows of a trainer's datasets.

    Args:
        datasets: The datasets, by name.
        config: The settings for them.
        stays_here: Whether the ranks run in this process, so that its blocks need not go to the engine.
    """
    if datasets and not stays_here:
        session_module.get_engine().tasks.expect_work([__name__, "hocket.data.shard"])
    found = {}
    for name, one in datasets.items():
        source = one.build_source(config.execution_options, stays_here=stays_here)
        if not source.num_rows:
            raise ValueError(
                f"The data set {name!r} has no rows, so there is nothing to train on. Check with count() what the "
                "files hold and what filter() leaves."
            )
        found[name] = Supply(
            source=source, is_split=config.datasets_to_split == "all" or name in config.datasets_to_split
        )
    return found


def get_dataset_shard(dataset_name: str | None = None) -> data.DataIterator:
    """Return the calling rank's part of one of the trainer's datasets: the same iterator in each call.

    Args:
        dataset_name: The dataset's name in ``datasets=``. May be left out if there is only one dataset.

    Raises:
        KeyError: There is no dataset of that name.
        ValueError: The name is left out, and there are several datasets.
        RuntimeError: The function is called outside a training function, or the trainer has no datasets.

    Example:
        >>> import tempfile
        >>> from hocket import data, train
        >>> def loop():
        ...     for batch in train.get_dataset_shard("train").iter_batches(batch_size=4):
        ...         train.report({"sum": int(batch["id"].sum())})
        >>> train.DataParallelTrainer(
        ...     loop,
        ...     datasets={"train": data.range(8)},
        ...     scaling_config=train.ScalingConfig(num_workers=0),
        ...     run_config=train.RunConfig(storage_path=tempfile.mkdtemp()),
        ... ).fit().metrics
        {'sum': 22}
    """
    session = worker_session.get_session("get_dataset_shard")
    session.refuse_bystander("get_dataset_shard")
    supplies = session.info.datasets
    if not supplies:
        raise RuntimeError(
            "get_dataset_shard() was called, but the trainer was given no datasets. Pass datasets={'train': "
            "dataset} to the trainer."
        )
    if dataset_name is None:
        if len(supplies) > 1:
            raise ValueError(
                "get_dataset_shard() was called without a name, but there are the datasets "
                f"{', '.join(map(repr, supplies))}. Name one."
            )
        (dataset_name,) = supplies
    if dataset_name not in supplies:
        raise KeyError(
            f"There is no data set {dataset_name!r}: the trainer was given {', '.join(map(repr, supplies))}. Pass it "
            "in the trainer's datasets=."
        )
    if dataset_name not in session.shards:
        session.shards[dataset_name] = _open(session, dataset_name, supplies[dataset_name])
    found: data.DataIterator = session.shards[dataset_name]
    return found


def _open(session: worker_session.WorkerSession, name: str, supply: Supply) -> data.DataIterator:
    info = session.info
    rank, world_size = session.batch_part if supply.is_split else (0, 1)
    known = f"dataset {name}"  # a prefix, because a loader may have the same name
    return data.DataIterator(
        supply.source,
        name,
        rank,
        world_size,
        info.start_positions.get(known),
        use_gpu=info.use_gpu,
        announce=lambda get_state: session.track(known, get_state),
    )
