"""Parameter servers: servers hold variables, workers compute, a coordinator schedules.

A program makes a `strategy` from a `cluster`, variables inside its `scope`, and a `coordinator` that runs functions on
the workers. `base_strategy` has the methods that a program calls in any process, and `evaluation` watches snapshots.

Below, from the ground up: `rules` needs numpy alone; `stores` holds the variables in memory that all processes of a
machine share, and applies pushes; `access` is the way to that memory; `variables` are its addresses; `checkpoint`
saves them; `executor` keeps the workers busy.
"""

import typing as _typing

from hocket._base import missing as _missing

if _typing.TYPE_CHECKING:
    from hocket.ps.access.closure_context import get_current_worker_index as get_current_worker_index
    from hocket.ps.checkpoint.checkpoints import load_checkpoint as load_checkpoint
    from hocket.ps.checkpoint.snapshots import Snapshot as Snapshot
    from hocket.ps.cluster import Cluster as Cluster
    from hocket.ps.cluster import ClusterTask as ClusterTask
    from hocket.ps.cluster import SimpleClusterResolver as SimpleClusterResolver
    from hocket.ps.cluster import TFConfigClusterResolver as TFConfigClusterResolver
    from hocket.ps.coordinator import Coordinator as Coordinator
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
    from hocket.ps.rules.initializers import Constant as Constant
    from hocket.ps.rules.initializers import Initializer as Initializer
    from hocket.ps.rules.initializers import Normal as Normal
    from hocket.ps.rules.initializers import Uniform as Uniform
    from hocket.ps.rules.initializers import Zeros as Zeros
    from hocket.ps.rules.optimizers import FTRL as FTRL
    from hocket.ps.rules.optimizers import SGD as SGD
    from hocket.ps.rules.optimizers import Adagrad as Adagrad
    from hocket.ps.rules.optimizers import Adam as Adam
    from hocket.ps.rules.optimizers import Optimizer as Optimizer
    from hocket.ps.rules.partitioners import FixedShards as FixedShards
    from hocket.ps.rules.partitioners import MaxSize as MaxSize
    from hocket.ps.rules.partitioners import MinSize as MinSize
    from hocket.ps.rules.partitioners import Partitioner as Partitioner
    from hocket.ps.scope import get_strategy as get_strategy
    from hocket.ps.stores.records import Eviction as Eviction
    from hocket.ps.strategy import ParameterServerStrategy as ParameterServerStrategy
    from hocket.ps.strategy import RemoteStrategy as RemoteStrategy
    from hocket.ps.variables.embedding import Embedding as Embedding
    from hocket.ps.variables.embedding import IndexedSlices as IndexedSlices
    from hocket.ps.variables.variable import ShardedVariable as ShardedVariable
    from hocket.ps.variables.variable import Variable as Variable

    ClusterSpec = Cluster  # TensorFlow's names, here and below
    ClusterCoordinator = Coordinator
    FixedShardsPartitioner = FixedShards
    MinSizePartitioner = MinSize
    MaxSizePartitioner = MaxSize

_missing.explain(__name__)
