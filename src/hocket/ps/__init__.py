"""Parameter servers: servers hold variables, workers compute, a coordinator schedules.

`cluster` describes the cluster's tasks. `initializers` compute a variable's first value, and `optimizers` turn
gradients into updates. `partitioners` choose the number of shards, and `placement` each shard's server. These need
numpy alone.

`strategy` starts the servers, and `base_strategy` has the methods that a program calls. `stores` holds the
variables in memory that all processes of a machine share, and applies pushes. `executor` keeps the workers busy.
"""

import typing as _typing

from hocket._base import missing as _missing

if _typing.TYPE_CHECKING:
    from hocket.ps.checkpoints import load_checkpoint as load_checkpoint
    from hocket.ps.closure_context import get_current_worker_index as get_current_worker_index
    from hocket.ps.cluster import Cluster as Cluster
    from hocket.ps.cluster import ClusterTask as ClusterTask
    from hocket.ps.cluster import SimpleClusterResolver as SimpleClusterResolver
    from hocket.ps.cluster import TFConfigClusterResolver as TFConfigClusterResolver
    from hocket.ps.coordinator import Coordinator as Coordinator
    from hocket.ps.embedding import Embedding as Embedding
    from hocket.ps.embedding import IndexedSlices as IndexedSlices
    from hocket.ps.errors import CancelledClosureError as CancelledClosureError
    from hocket.ps.errors import CapacityError as CapacityError
    from hocket.ps.errors import CheckpointDamagedError as CheckpointDamagedError
    from hocket.ps.errors import CheckpointMismatchError as CheckpointMismatchError
    from hocket.ps.errors import ClosureError as ClosureError
    from hocket.ps.errors import ClosureFailures as ClosureFailures
    from hocket.ps.errors import NonFiniteGradientError as NonFiniteGradientError
    from hocket.ps.errors import OutOfDataError as OutOfDataError
    from hocket.ps.errors import ParameterServerError as ParameterServerError
    from hocket.ps.errors import PushTimeoutError as PushTimeoutError
    from hocket.ps.errors import ServerLostError as ServerLostError
    from hocket.ps.evaluation import SidecarEvaluator as SidecarEvaluator
    from hocket.ps.executor.streams import InputContext as InputContext
    from hocket.ps.initializers import Constant as Constant
    from hocket.ps.initializers import Initializer as Initializer
    from hocket.ps.initializers import Normal as Normal
    from hocket.ps.initializers import Uniform as Uniform
    from hocket.ps.initializers import Zeros as Zeros
    from hocket.ps.optimizers import FTRL as FTRL
    from hocket.ps.optimizers import SGD as SGD
    from hocket.ps.optimizers import Adagrad as Adagrad
    from hocket.ps.optimizers import Adam as Adam
    from hocket.ps.optimizers import Optimizer as Optimizer
    from hocket.ps.partitioners import FixedShards as FixedShards
    from hocket.ps.partitioners import MaxSize as MaxSize
    from hocket.ps.partitioners import MinSize as MinSize
    from hocket.ps.partitioners import Partitioner as Partitioner
    from hocket.ps.scope import get_strategy as get_strategy
    from hocket.ps.snapshots import Snapshot as Snapshot
    from hocket.ps.stores.records import Eviction as Eviction
    from hocket.ps.strategy import ParameterServerStrategy as ParameterServerStrategy
    from hocket.ps.strategy import RemoteStrategy as RemoteStrategy
    from hocket.ps.variable import ShardedVariable as ShardedVariable
    from hocket.ps.variable import Variable as Variable

    ClusterSpec = Cluster  # TensorFlow's names, here and below
    ClusterCoordinator = Coordinator
    FixedShardsPartitioner = FixedShards
    MinSizePartitioner = MinSize
    MaxSizePartitioner = MaxSize

_missing.explain(__name__)
