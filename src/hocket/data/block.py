"""Blocks for users' own datasources and datasinks, under Ray's names."""

from hocket.data.blocks import Batch as Block
from hocket.data.sources.custom import BlockMetadata as BlockMetadata
from hocket.data.sources.sinks import BlockAccessor as BlockAccessor

__all__ = ["Block", "BlockAccessor", "BlockMetadata"]
