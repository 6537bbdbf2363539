"""Collectives: what ranks compute together. Inside a host they do so through memory that they share.

- `hocket.collective.torch` is the backend ``"hocket"`` of torch.distributed, which trainers use.
- `host_group.HostGroup` is what it stands on: the same for numpy arrays, and whatever looks like them.
"""

from hocket.collective.arithmetic import ReduceOp as ReduceOp
from hocket.collective.errors import CollectiveError as CollectiveError
from hocket.collective.errors import CollectiveMismatchError as CollectiveMismatchError
from hocket.collective.errors import CollectiveTimeoutError as CollectiveTimeoutError
from hocket.collective.errors import RankDiedError as RankDiedError
