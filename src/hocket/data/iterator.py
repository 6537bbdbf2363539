"""What a rank reads, under Ray's name of its module."""

from hocket.data.shard import DataIterator as DataIterator
