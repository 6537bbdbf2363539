"""Hocket runs a program's functions, objects and training loops on many worker processes.

- `init` and `shutdown` open and close the session; the first remote call opens one by itself.
- `remote` makes a function or a class remote; ``.remote(...)`` then starts a call, and returns a reference at once.
- `get` waits for values, `wait` for some of several, and `put` stores a value that many calls use.
- `method` gives a method of an actor its options; `kill` ends an actor, `cancel` a task.
- `exceptions` has every error, sorted by what to do about it.

`hocket.data`, `hocket.train`, `hocket.tune`, `hocket.collective`, `hocket.ps`, `hocket.mesh` and `hocket.util` load on
first use. The manual is in the folder ``docs`` of the repository: begin with ``docs/tutorials/core.md``, and look
things up in ``docs/core.md``. The command ``hocket doctor`` checks this machine.

Example:
    >>> import hocket
    >>> @hocket.remote
    ... def square(x):
    ...     return x * x
    >>> with hocket.init(num_cpus=2, engine="inprocess"):
    ...     hocket.get([square.remote(x) for x in range(4)])
    [0, 1, 4, 9]
"""

import typing as _typing

from hocket._base import __version__ as __version__
from hocket._base import missing as _missing

if _typing.TYPE_CHECKING:
    from hocket import actor as actor
    from hocket import cloudpickle as cloudpickle
    from hocket import collective as collective
    from hocket import dag as dag
    from hocket import data as data
    from hocket import exceptions as exceptions
    from hocket import mesh as mesh
    from hocket import ps as ps
    from hocket import runtime_env as runtime_env
    from hocket import spark as spark
    from hocket import train as train
    from hocket import tune as tune
    from hocket import util as util
    from hocket.core.actor import ActorClass as ActorClass
    from hocket.core.actor import ActorHandle as ActorHandle
    from hocket.core.actor import method as method
    from hocket.core.api import available_resources as available_resources
    from hocket.core.api import cancel as cancel
    from hocket.core.api import cluster_resources as cluster_resources
    from hocket.core.api import error_info as error_info
    from hocket.core.api import get as get
    from hocket.core.api import get_actor as get_actor
    from hocket.core.api import get_gpu_ids as get_gpu_ids
    from hocket.core.api import get_runtime_context as get_runtime_context
    from hocket.core.api import kill as kill
    from hocket.core.api import nodes as nodes
    from hocket.core.api import put as put
    from hocket.core.api import remote as remote
    from hocket.core.api import wait as wait
    from hocket.core.context import RuntimeContext as RuntimeContext
    from hocket.core.generators import DynamicObjectRefGenerator as DynamicObjectRefGenerator
    from hocket.core.generators import ObjectRefGenerator as ObjectRefGenerator
    from hocket.core.remote_function import RemoteFunction as RemoteFunction
    from hocket.core.session import SessionContext as SessionContext
    from hocket.core.session import init as init
    from hocket.core.session import is_initialized as is_initialized
    from hocket.core.session import shutdown as shutdown
    from hocket.core.timeline import timeline as timeline
    from hocket.core.typed import TypedActor as TypedActor
    from hocket.engine.contract import ObjectRef as ObjectRef

    ObjectID = ObjectRef  # Ray's older name

_missing.install()
_missing.explain(__name__, ("testing", "experimental", "_raylet"))
