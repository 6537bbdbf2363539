"""Horovod's functions for JAX: ``import hocket.train.horovod.jax as hvd``, in a `JaxTrainer`'s training function.

Horovod itself has none for JAX. JAX's arrays are immutable, so functions that work in place in Horovod return their
result here. `allreduce` also works inside ``jax.jit``.
"""

from hocket.compat.horovod.jax import Adasum as Adasum
from hocket.compat.horovod.jax import Average as Average
from hocket.compat.horovod.jax import DistributedOptimizer as DistributedOptimizer
from hocket.compat.horovod.jax import Max as Max
from hocket.compat.horovod.jax import Min as Min
from hocket.compat.horovod.jax import Product as Product
from hocket.compat.horovod.jax import Sum as Sum
from hocket.compat.horovod.jax import allgather as allgather
from hocket.compat.horovod.jax import allgather_object as allgather_object
from hocket.compat.horovod.jax import allreduce as allreduce
from hocket.compat.horovod.jax import barrier as barrier
from hocket.compat.horovod.jax import broadcast as broadcast
from hocket.compat.horovod.jax import broadcast_object as broadcast_object
from hocket.compat.horovod.jax import broadcast_optimizer_state as broadcast_optimizer_state
from hocket.compat.horovod.jax import broadcast_parameters as broadcast_parameters
from hocket.compat.horovod.jax import ccl_built as ccl_built
from hocket.compat.horovod.jax import cross_rank as cross_rank
from hocket.compat.horovod.jax import cross_size as cross_size
from hocket.compat.horovod.jax import cuda_built as cuda_built
from hocket.compat.horovod.jax import ddl_built as ddl_built
from hocket.compat.horovod.jax import gloo_built as gloo_built
from hocket.compat.horovod.jax import gloo_enabled as gloo_enabled
from hocket.compat.horovod.jax import init as init
from hocket.compat.horovod.jax import is_homogeneous as is_homogeneous
from hocket.compat.horovod.jax import is_initialized as is_initialized
from hocket.compat.horovod.jax import join as join
from hocket.compat.horovod.jax import local_rank as local_rank
from hocket.compat.horovod.jax import local_size as local_size
from hocket.compat.horovod.jax import mpi_built as mpi_built
from hocket.compat.horovod.jax import mpi_enabled as mpi_enabled
from hocket.compat.horovod.jax import mpi_threads_supported as mpi_threads_supported
from hocket.compat.horovod.jax import nccl_built as nccl_built
from hocket.compat.horovod.jax import rank as rank
from hocket.compat.horovod.jax import rocm_built as rocm_built
from hocket.compat.horovod.jax import shutdown as shutdown
from hocket.compat.horovod.jax import size as size
