"""Ray's name for `hocket.collective`, where the functions are described: ``from hocket.util import collective as col``.

Each rank has one tensor, in its machine's memory. The default backend is Hocket's own; Ray's is NCCL.
"""

from hocket._base import missing as _missing
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


def gloo_available() -> bool:
    """Return whether groups with the backend ``"gloo"`` can be made."""
    return is_backend_available("gloo")


def nccl_available() -> bool:
    """Return whether groups with the backend ``"nccl"`` can be made: never, see `init_collective_group`."""
    return is_backend_available("nccl")


_missing.explain(__name__, ("types",))
