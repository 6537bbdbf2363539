"""Horovod's functions for Keras 3 on any backend, in a `KerasTrainer`'s training function.

Write ``import hocket.train.horovod.keras as hvd``. `DistributedOptimizer` works inside the compiled step. On
TensorFlow compile the model with ``jit_compile=False``, because TensorFlow's XLA cannot leave a step to average its
gradients.
"""

from hocket.compat.horovod.keras import Adasum as Adasum
from hocket.compat.horovod.keras import Average as Average
from hocket.compat.horovod.keras import BestModelCheckpoint as BestModelCheckpoint
from hocket.compat.horovod.keras import BroadcastGlobalVariablesCallback as BroadcastGlobalVariablesCallback
from hocket.compat.horovod.keras import DistributedOptimizer as DistributedOptimizer
from hocket.compat.horovod.keras import LearningRateScheduleCallback as LearningRateScheduleCallback
from hocket.compat.horovod.keras import LearningRateWarmupCallback as LearningRateWarmupCallback
from hocket.compat.horovod.keras import Max as Max
from hocket.compat.horovod.keras import MetricAverageCallback as MetricAverageCallback
from hocket.compat.horovod.keras import Min as Min
from hocket.compat.horovod.keras import Product as Product
from hocket.compat.horovod.keras import Sum as Sum
from hocket.compat.horovod.keras import allgather as allgather
from hocket.compat.horovod.keras import allgather_object as allgather_object
from hocket.compat.horovod.keras import allreduce as allreduce
from hocket.compat.horovod.keras import barrier as barrier
from hocket.compat.horovod.keras import broadcast as broadcast
from hocket.compat.horovod.keras import broadcast_object as broadcast_object
from hocket.compat.horovod.keras import broadcast_optimizer_state as broadcast_optimizer_state
from hocket.compat.horovod.keras import broadcast_parameters as broadcast_parameters
from hocket.compat.horovod.keras import broadcast_variables as broadcast_variables
from hocket.compat.horovod.keras import callbacks as callbacks
from hocket.compat.horovod.keras import ccl_built as ccl_built
from hocket.compat.horovod.keras import cross_rank as cross_rank
from hocket.compat.horovod.keras import cross_size as cross_size
from hocket.compat.horovod.keras import cuda_built as cuda_built
from hocket.compat.horovod.keras import ddl_built as ddl_built
from hocket.compat.horovod.keras import gloo_built as gloo_built
from hocket.compat.horovod.keras import gloo_enabled as gloo_enabled
from hocket.compat.horovod.keras import init as init
from hocket.compat.horovod.keras import is_homogeneous as is_homogeneous
from hocket.compat.horovod.keras import is_initialized as is_initialized
from hocket.compat.horovod.keras import join as join
from hocket.compat.horovod.keras import local_rank as local_rank
from hocket.compat.horovod.keras import local_size as local_size
from hocket.compat.horovod.keras import mpi_built as mpi_built
from hocket.compat.horovod.keras import mpi_enabled as mpi_enabled
from hocket.compat.horovod.keras import mpi_threads_supported as mpi_threads_supported
from hocket.compat.horovod.keras import nccl_built as nccl_built
from hocket.compat.horovod.keras import rank as rank
from hocket.compat.horovod.keras import rocm_built as rocm_built
from hocket.compat.horovod.keras import shutdown as shutdown
from hocket.compat.horovod.keras import size as size
