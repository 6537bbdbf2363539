"""Parameter servers: servers hold variables, workers compute, a coordinator schedules.

`cluster` says who takes part. `initializers` say what a variable begins with, and `optimizers` how a gradient changes it. `partitioners` say into how
many shards it is cut, and `placement` which server holds which. These need numpy alone.
"""

from hocket.ps.cluster import Cluster as Cluster
from hocket.ps.cluster import ClusterTask as ClusterTask
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
