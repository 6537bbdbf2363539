"""The backend ``"hocket"`` of torch.distributed: DistributedDataParallel, FSDP and plain ``dist.*`` calls over memory
that ranks share.

`register` makes its name known; then ``dist.init_process_group("hocket", ...)`` and
``dist.new_group(backend="hocket")`` work as they do with gloo.

Operations are done when the call returns, also with ``async_op=True``: with as many ranks as processors nobody would
have time to do them meanwhile, and a thread for them costs more than most of them take. Only messages between two ranks
may be under way. So ranks must call operations in the same order, as NCCL asks of them too.

Between hosts the first ranks of the hosts meet over gloo: an all-reduce adds up inside each host, then between these,
and hands the sum out inside each host again. Operations that are not worth that go over gloo as a whole.
"""

from importlib import import_module as _import_module

from hocket import extras as _extras

with _extras.explain("hocket.collective.torch", "PyTorch", "Run pip install 'hocket[torch]'."):
    _import_module("torch")

from hocket.collective.torch.process_group import NAME as NAME
from hocket.collective.torch.process_group import ProcessGroup as ProcessGroup
from hocket.collective.torch.process_group import register as register
