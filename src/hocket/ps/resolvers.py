"""TensorFlow's cluster resolvers, for programs that have them. Each returns a `Cluster`."""

from __future__ import annotations

from typing import Any

from hocket.ps import cluster, scope


def SimpleClusterResolver(  # noqa: N802 (TensorFlow's name)
    cluster_spec: object, task_type: str | None = None, task_id: int | None = None, **ignored: object
) -> cluster.Cluster:
    """Return the cluster of a description.

    Args:
        cluster_spec: What `Cluster` takes.
        task_type: The role of this process, if it has one.
        task_id: Its index.
        **ignored: ``master``, ``environment``, ``num_accelerators`` and ``rpc_layer``, which mean nothing here.

    Raises:
        ValueError: See `Cluster`.

    Example:
        >>> from hocket import ps
        >>> ps.SimpleClusterResolver(ps.ClusterSpec({"worker": ["a:1"], "ps": ["b:1"]})).num_servers
        1
    """
    task = cluster.ClusterTask(task_type, task_id or 0) if task_type else None
    return cluster.Cluster(cluster_spec, task=task)


def TFConfigClusterResolver(**ignored: object) -> cluster.Cluster:  # noqa: N802 (the same)
    """Return the cluster that the variable ``TF_CONFIG`` describes; see `Cluster.from_tf_config`.

    Args:
        **ignored: What the variable says, said by other means: ``task_type``, ``task_id``, ``rpc_layer`` and
            ``environment``.

    Raises:
        ValueError: The variable is not a cluster's.

    Example:
        >>> import os
        >>> from hocket import ps
        >>> os.environ["TF_CONFIG"] = '{"cluster": {"worker": ["a:1", "b:1"], "ps": ["c:1"]}}'
        >>> ps.TFConfigClusterResolver().num_workers
        2
        >>> del os.environ["TF_CONFIG"]
    """
    return cluster.Cluster.from_tf_config()


def get_strategy() -> Any:
    """Return the strategy in whose scope the caller is.

    Raises:
        RuntimeError: It is in none.

    Example:
        >>> from hocket import ps
        >>> strategy = ps.ParameterServerStrategy({"worker": 1, "server": 1})
        >>> with strategy.scope():
        ...     ps.get_strategy() is strategy
        True
        >>> strategy.close()
    """
    return scope.get_strategy("ps.get_strategy")
