"""The backend ``"hocket"`` of torch.distributed: DDP, FSDP and plain ``dist.*`` calls over shared memory.

After `register`, ``dist.init_process_group("hocket", ...)`` and ``dist.new_group(backend="hocket")`` work as with gloo.

Operations are done when the call returns, even with ``async_op=True``: with as many ranks as processors, no processor
would be free for them, and a thread costs more than most operations take. Only messages between two ranks may be under
way. So ranks must call operations in the same order, as NCCL requires too.

Between hosts, the first ranks of the hosts use gloo: an all-reduce adds up inside each host, then between these ranks,
and distributes the sum inside each host. Operations where this does not pay use gloo between all ranks.
"""

from importlib import import_module as _import_module

from hocket import extras as _extras

with _extras.explain("hocket.collective.torch", "PyTorch", "Run pip install 'hocket[torch]'."):
    _import_module("torch")

from hocket.collective.torch.process_group import NAME as NAME
from hocket.collective.torch.process_group import ProcessGroup as ProcessGroup
from hocket.collective.torch.process_group import register as register
