"""The rows of a rank, under Ray's name of the module."""

from hocket.data.shard import DataIterator as DataIterator
