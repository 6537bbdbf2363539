"""The names of Hugging Face's datasets."""

from __future__ import annotations


def is_split(dataset: object) -> bool:
    """Tell whether a stream was split among ranks by `datasets.distributed.split_dataset_by_node`."""
    return getattr(dataset, "_distributed", None) is not None
