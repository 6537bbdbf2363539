"""Meshes and layouts on JAX: a value is one global array, and XLA finds what an operation's result is spread like.

`values` says what a value is. A relayout is ours (`relayouts`): ``shard_map`` with the steps of the plan, so no more
bytes move than the algebra says. Inside of a function that JAX traces the layout is not known; there it is a
constraint, and XLA finds the way. `backend` has the verbs, and `compiled` reads what XLA
has made.

Over several processes a mesh has the devices of all of them (`devices`, `processes`), and all call the same in the same
order. A process keeps what its devices have; XLA's collectives between processes are gloo's, or NCCL's.
"""

from hocket.mesh.backends.jax.backend import BACKEND as BACKEND
from hocket.mesh.backends.jax.backend import JaxBackend as JaxBackend
from hocket.mesh.backends.jax.compiled import Programs as Programs
from hocket.mesh.backends.jax.compiled import count_received as count_received
from hocket.mesh.backends.jax.devices import find_sharding as find_sharding
from hocket.mesh.backends.jax.devices import get_mesh as get_mesh
from hocket.mesh.backends.jax.relayouts import compile_plan as compile_plan
from hocket.mesh.backends.jax.values import JaxTensor as JaxTensor
from hocket.mesh.backends.jax.values import gather as gather
from hocket.mesh.backends.jax.values import place as place
