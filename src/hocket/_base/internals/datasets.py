"""Undocumented names of Hugging Face's datasets."""

from __future__ import annotations


def is_split(dataset: object) -> bool:
    """Return whether `datasets.distributed.split_dataset_by_node` has split a stream among ranks."""
    return getattr(dataset, "_distributed", None) is not None
