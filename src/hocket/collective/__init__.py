"""Collectives: operations that ranks do together. Ranks on one host use shared memory.

- The functions here have the names of ``ray.util.collective``; they are for actors and tasks of one machine.
- `hocket.collective.torch` is the backend ``"hocket"`` of torch.distributed, which trainers use.
- `host_group.HostGroup` is the common base: the same operations for numpy arrays and similar types.
"""

from hocket.collective.api import allgather as allgather
from hocket.collective.api import allreduce as allreduce
from hocket.collective.api import barrier as barrier
from hocket.collective.api import broadcast as broadcast
from hocket.collective.api import create_collective_group as create_collective_group
from hocket.collective.api import destroy_collective_group as destroy_collective_group
from hocket.collective.api import get_collective_group_size as get_collective_group_size
from hocket.collective.api import get_rank as get_rank
from hocket.collective.api import init_collective_group as init_collective_group
from hocket.collective.api import is_backend_available as is_backend_available
from hocket.collective.api import is_group_initialized as is_group_initialized
from hocket.collective.api import recv as recv
from hocket.collective.api import reduce as reduce
from hocket.collective.api import reducescatter as reducescatter
from hocket.collective.api import send as send
from hocket.collective.arithmetic import ReduceOp as ReduceOp
from hocket.collective.errors import CollectiveError as CollectiveError
from hocket.collective.errors import CollectiveMismatchError as CollectiveMismatchError
from hocket.collective.errors import CollectiveTimeoutError as CollectiveTimeoutError
from hocket.collective.errors import RankDiedError as RankDiedError
