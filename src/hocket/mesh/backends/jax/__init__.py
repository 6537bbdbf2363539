"""Meshes and layouts on JAX: a value is one global array, and XLA chooses the layouts of results.

`values` has the class of values. Relayouts use our plans (`relayouts`): ``shard_map`` with the plan's steps, so the
bytes moved are those that the plan counts. Inside a function that JAX traces, layouts are unknown: a relayout becomes a
constraint, and XLA finds the way. `backend` implements the contract, and `compiled` measures compiled programs.

Over several processes a mesh has the devices of all of them (`devices`, `processes`), and all make the same calls in
the same order. A process keeps the parts on its own devices. XLA's collectives between processes are gloo's or NCCL's.
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
