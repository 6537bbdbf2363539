"""The base class of variables and tables: small objects that hold the address of their shards, and can be pickled."""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

import numpy as np

from hocket.ps.access import links
from hocket.ps.stores import records


class Handle:
    """A variable or table on servers, as any process sees it. `build` makes it.

    Attributes:
        name: The name in messages and checkpoints.
        dtype: The type of the elements.
    """

    name: str
    dtype: np.dtype[Any]
    _address: links.Address
    _record: records.VariableRecord
    _parts: tuple[Any, ...]
    """The specs of the shards."""
    _FIELDS: ClassVar[tuple[str, ...]]
    """The fields of the record that are attributes of the handle, too."""

    def __reduce__(self) -> tuple[object, ...]:
        return build, (type(self), self._address, self._record)

    @property
    def servers(self) -> tuple[int, ...]:
        """The server of each shard."""
        return tuple(part.server for part in self._parts)

    @property
    def optimizer(self) -> Any:
        """The optimizer that applies gradients; None if the variable takes no gradients."""
        return self._parts[0].optimizer


T = TypeVar("T", bound=Handle)


def build(cls: type[T], address: links.Address, record: records.VariableRecord) -> T:
    """Return a handle of a variable or table whose shards exist."""
    made = object.__new__(cls)
    made._address, made._record, made._parts = address, record, record.parts
    made.name, made.dtype = record.name, np.dtype(record.dtype)
    for field in cls._FIELDS:
        setattr(made, field, getattr(record, field))
    return made
