"""TensorFlow's data sets that have only a rank's own rows."""

from __future__ import annotations

from typing import Any


def prepare_dataset_shard(tf_dataset_shard: object) -> Any:
    """Return a ``tf.data.Dataset`` that is read ahead, and that MultiWorkerMirroredStrategy does not split again.

    Args:
        tf_dataset_shard: This rank's rows, such as the result of `hocket.data.Ledger` or ``shard``.

    Raises:
        TypeError: The argument is no ``tf.data.Dataset``.
    """
    import tensorflow as tf

    if not isinstance(tf_dataset_shard, tf.data.Dataset):
        raise TypeError(
            f"prepare_dataset_shard() takes a tf.data.Dataset, but received {type(tf_dataset_shard).__name__}. Write "
            "tf.data.Dataset.from_tensor_slices((x, y)).batch(64) first."
        )
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return tf_dataset_shard.with_options(options).prefetch(tf.data.AUTOTUNE)
