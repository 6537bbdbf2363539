"""Horovod's functions for PyTorch: ``import hocket.train.horovod.torch as hvd``.

They call torch.distributed. A `TorchTrainer` makes the process group; under ``hocket run`` and torchrun, `init` makes
it. In a single process they do nothing.
"""

from hocket.compat.horovod.torch import Adasum as Adasum
from hocket.compat.horovod.torch import Average as Average
from hocket.compat.horovod.torch import Compression as Compression
from hocket.compat.horovod.torch import DistributedOptimizer as DistributedOptimizer
from hocket.compat.horovod.torch import Max as Max
from hocket.compat.horovod.torch import Min as Min
from hocket.compat.horovod.torch import Product as Product
from hocket.compat.horovod.torch import Sum as Sum
from hocket.compat.horovod.torch import allgather as allgather
from hocket.compat.horovod.torch import allgather_object as allgather_object
from hocket.compat.horovod.torch import allreduce as allreduce
from hocket.compat.horovod.torch import allreduce_ as allreduce_
from hocket.compat.horovod.torch import barrier as barrier
from hocket.compat.horovod.torch import broadcast as broadcast
from hocket.compat.horovod.torch import broadcast_ as broadcast_
from hocket.compat.horovod.torch import broadcast_object as broadcast_object
from hocket.compat.horovod.torch import broadcast_optimizer_state as broadcast_optimizer_state
from hocket.compat.horovod.torch import broadcast_parameters as broadcast_parameters
from hocket.compat.horovod.torch import ccl_built as ccl_built
from hocket.compat.horovod.torch import cross_rank as cross_rank
from hocket.compat.horovod.torch import cross_size as cross_size
from hocket.compat.horovod.torch import cuda_built as cuda_built
from hocket.compat.horovod.torch import ddl_built as ddl_built
from hocket.compat.horovod.torch import gloo_built as gloo_built
from hocket.compat.horovod.torch import gloo_enabled as gloo_enabled
from hocket.compat.horovod.torch import init as init
from hocket.compat.horovod.torch import is_homogeneous as is_homogeneous
from hocket.compat.horovod.torch import is_initialized as is_initialized
from hocket.compat.horovod.torch import join as join
from hocket.compat.horovod.torch import local_rank as local_rank
from hocket.compat.horovod.torch import local_size as local_size
from hocket.compat.horovod.torch import mpi_built as mpi_built
from hocket.compat.horovod.torch import mpi_enabled as mpi_enabled
from hocket.compat.horovod.torch import mpi_threads_supported as mpi_threads_supported
from hocket.compat.horovod.torch import nccl_built as nccl_built
from hocket.compat.horovod.torch import rank as rank
from hocket.compat.horovod.torch import rocm_built as rocm_built
from hocket.compat.horovod.torch import shutdown as shutdown
from hocket.compat.horovod.torch import size as size
