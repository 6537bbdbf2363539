"""Parameters and batches split over a mesh of ranks: data parallel, fully sharded, tensor parallel, and combinations.

See `hocket.mesh` for meshes and layouts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

from hocket import keywords
from hocket.train.strategies import strategy

_UNSHARDED = "unsharded"  # as `hocket.mesh.UNSHARDED`, which takes as long to import as half of hocket.train


@final
@keywords.explained()
@dataclass(frozen=True, kw_only=True)
class Sharded(strategy.Strategy):
    """A strategy that arranges the ranks in a mesh, and shards parameters over the mesh's axes by a layout.

    Ranks along a batch axis have different rows, ranks along other axes the same rows. A parameter that is sharded
    along a batch axis is gathered whole for a layer, and its gradient is reduced to the shard that each rank keeps:
    fully sharded training (FSDP, ZeRO's third stage). Along another axis the layers compute with shards: tensor
    parallel training. Other parameters are replicated. The training function does not change, and all layouts train the
    same weights, up to the order of sums.

    It works with PyTorch, JAX, and Keras 3 on JAX; elsewhere it is refused.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: A size is below 1, or the mesh lacks a named axis.

    Example:
        >>> from hocket.train.strategies import Sharded
        >>> Sharded(mesh={"data": 2}, shard_along=["data"])  # fully sharded on two ranks
        Sharded(mesh={'data': 2}, layout={}, batch_dims=('data',), shard_along=('data',), bucket_bytes=33554432)
        >>> megatron = {r".*up\\.weight": ["model", "unsharded"], r".*down\\.weight": ["unsharded", "model"]}
        >>> Sharded(mesh={"data": 2, "model": 2}, layout=megatron).locate_batch(3, 4)
        (1, 2)
    """

    mesh: Mapping[str, int]
    """Names and sizes of the axes, major first, with as many places as ranks. Rank 1 is rank 0's neighbour along the
    last axis."""
    layout: Mapping[str, Sequence[str | Sequence[str]]] = field(default_factory=dict)
    """The axes of each parameter's dims, as in `hocket.mesh.LayoutMap`. A key is a regular expression that matches a
    whole name (``"0.weight"``) or, in JAX and Keras, a path (``"dense/kernel"``, ``"sequential/dense/kernel"``). A
    value has for each dim an axis, several axes, or ``"unsharded"``. A parameter without a match is replicated."""
    batch_dims: Sequence[str] = ("data",)
    """The axes that split the batch. Ranks along them have different rows. The mesh may lack some of these axes. Ranks
    along other axes get the same rows from `prepare_data_loader`, `prepare_arrays` and `get_dataset_shard`."""
    shard_along: Sequence[str] = ()
    """Axes that shard each parameter as well, along its first unsharded dim that they divide. Parameters without such
    a dim stay whole. Default: none."""
    bucket_bytes: int = 32 * 2**20
    """In PyTorch, modules with at most this many bytes of whole parameters travel in one message, and stay whole while
    one of them computes. A smaller number takes less memory and more messages. 0: one message for each layer."""

    def __post_init__(self) -> None:
        self._check_kinds()
        sizes: Mapping[Any, object] = dict(self.mesh)
        for name, size in sizes.items():
            if not isinstance(name, str) or not isinstance(size, int) or isinstance(size, bool):
                raise TypeError(
                    f"mesh must be a dict of names and sizes, but received {self.mesh!r}. Write mesh={{'data': 2}}."
                )
            if size < 1:
                raise ValueError(
                    f"Each axis of a mesh must have 1 place or more, but {name!r} has {size} in {self.mesh!r}. Write "
                    "mesh={'data': 2}."
                )
        limit: object = self.bucket_bytes
        if not isinstance(limit, int) or isinstance(limit, bool):
            raise TypeError(f"bucket_bytes must be an int, but received {limit!r}. Write a number of bytes.")
        if limit < 0:
            raise ValueError(f"bucket_bytes must be 0 or more, but received {limit}. Write 0 for one message a layer.")
        if not sizes:
            raise ValueError("A mesh needs an axis, but received none. Write mesh={'data': 2}.")
        for option in ("batch_dims", "shard_along"):
            given = getattr(self, option)
            object.__setattr__(self, option, (given,) if isinstance(given, str) else tuple(given))
        if tuple(self.batch_dims) != ("data",) and self.batch_dims and not {*self.batch_dims} & {*self.mesh}:
            raise ValueError(
                f"The mesh has the axes {list(self.mesh)}, but batch_dims={list(self.batch_dims)!r} names none of "
                "them. Name the axes that cut the batch, or write batch_dims=[] if none does."
            )
        for name in (*self.shard_along, *self._list_named()):
            if name not in self.mesh:
                raise ValueError(
                    f"The mesh has the axes {list(self.mesh)}, but received the axis {name!r}. Write one of the mesh's "
                    f"axes, or {_UNSHARDED!r} for a dim that stays whole."
                )

    def _check_kinds(self) -> None:
        mesh: object = self.mesh
        if not isinstance(mesh, Mapping):
            raise TypeError(f"mesh must be a dict of names and sizes, but received {mesh!r}. Write mesh={{'data': 2}}.")
        rules: object = self.layout
        if not isinstance(rules, Mapping):
            raise TypeError(
                f"layout must be a dict of patterns and axes, but received {rules!r}. Write layout="
                "{'.*weight': ['model', 'unsharded']}."
            )
        for pattern, specs in rules.items():
            try:
                re.compile(pattern)
            except (re.error, TypeError) as error:
                raise ValueError(
                    f"The keys of layout must be regular expressions, but received {pattern!r}: {error}. Write "
                    "r'.*weight'."
                ) from error
            if not isinstance(specs, Iterable):
                raise TypeError(
                    f"A layout must have one axis for each dim, but {pattern!r} has {specs!r}. Write ['model']."
                )
            for spec in specs:
                if not isinstance(spec, str) and not isinstance(spec, Sequence):
                    raise TypeError(
                        f"The layout of {pattern!r} has {spec!r} for a dim. Write an axis, or {_UNSHARDED!r}."
                    )
        for option in ("batch_dims", "shard_along"):
            given: object = getattr(self, option)
            if not isinstance(given, Iterable):
                raise TypeError(f"{option} must name axes, but received {given!r}. Write {option}=['data'].")

    def _list_named(self) -> Iterator[str]:
        """Yield the axes that the layout names."""
        for specs in self.layout.values():
            if isinstance(specs, str):
                raise TypeError(
                    f"A layout must have a list with one axis for each dim, but received {specs!r}. Write [{specs!r}]."
                )
            for spec in specs:
                names = spec.split(",") if isinstance(spec, str) else spec
                yield from (name.strip() for name in names if name.strip() != _UNSHARDED)

    @property
    def world_size(self) -> int:
        """The number of ranks that the mesh needs."""
        return math.prod(self.mesh.values())

    def locate_batch(self, rank: int, world_size: int) -> tuple[int, int]:
        """Return the index of a rank's part of each step's rows, and the number of parts.

        Raises:
            ValueError: The mesh does not have as many places as there are ranks.
        """
        if self.world_size != world_size:
            raise ValueError(
                f"The mesh {dict(self.mesh)!r} has {self.world_size} places, but there are {world_size} ranks. Write "
                f"ScalingConfig(num_workers={self.world_size}), or another mesh."
            )
        part, count, stride = 0, 1, self.world_size
        for name, size in self.mesh.items():
            stride //= size
            if name in self.batch_dims:
                part, count = part * size + rank // stride % size, count * size
        return part, count

    def open(self, ranks: strategy.Ranks) -> strategy.StrategyRuntime:
        """Raise an error: this strategy changes layers, so it works only in frameworks with an override of their own.

        Raises:
            TypeError: Always.
        """
        raise TypeError(
            f"{self!r} trains PyTorch's modules, JAX's arrays, and Keras's models on JAX. Use TorchTrainer, JaxTrainer "
            "or KerasTrainer, or AllReduce() here."
        )
