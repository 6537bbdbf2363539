"""The base of variables and tables: small objects that know their place, and can travel."""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

import numpy as np

from hocket.ps import links
from hocket.ps.stores import records


class Handle:
    """A variable or table on servers, as any process sees it. Made by `build`.

    Attributes:
        name: What it is called in messages and checkpoints.
        dtype: Of its elements.
    """

    name: str
    dtype: np.dtype[Any]
    _address: links.Address
    _record: records.VariableRecord
    _parts: tuple[Any, ...]
    """Its shards."""
    _FIELDS: ClassVar[tuple[str, ...]]
    """Which fields of the record are attributes, too."""

    def __reduce__(self) -> tuple[object, ...]:
        return build, (type(self), self._address, self._record)

    @property
    def servers(self) -> tuple[int, ...]:
        """Which server holds each shard."""
        return tuple(part.server for part in self._parts)

    @property
    def optimizer(self) -> Any:
        """The rule that turns its gradients into updates; None if it takes none."""
        return self._parts[0].optimizer


T = TypeVar("T", bound=Handle)


def build(cls: type[T], address: links.Address, record: records.VariableRecord) -> T:
    """Return a variable or table whose shards are there."""
    made = object.__new__(cls)
    made._address, made._record, made._parts = address, record, record.parts
    made.name, made.dtype = record.name, np.dtype(record.dtype)
    for field in cls._FIELDS:
        setattr(made, field, getattr(record, field))
    return made
