"""Meshes and layouts on PyTorch: each rank of the default process group is a device, a value is torch's ``DTensor``.

Operations are torch's: it derives the layouts of results, and its collectives use the group's backend. Where its rule
is missing or wrong, `functions` computes on correct parts. Relayouts are ours (`relayouts`): the plan's steps on the
rank's part, so the bytes moved are those that the plan counts. The gradient of a relayout is the relayout back.
`values` has the class of values, `modules` spreads a module's values in place, and `backend` implements the contract.

All ranks make the same calls in the same order: meshes, relayouts, `hocket.mesh.gather`, and operations.
"""

from hocket.mesh.backends.torch.backend import BACKEND as BACKEND
from hocket.mesh.backends.torch.backend import TorchBackend as TorchBackend
from hocket.mesh.backends.torch.functions import Functions as Functions
from hocket.mesh.backends.torch.modules import lay_out_gradients as lay_out_gradients
from hocket.mesh.backends.torch.relayouts import get_device_mesh as get_device_mesh
from hocket.mesh.backends.torch.relayouts import list_placements as list_placements
from hocket.mesh.backends.torch.relayouts import read_placements as read_placements
from hocket.mesh.backends.torch.relayouts import run_plan as run_plan
from hocket.mesh.backends.torch.relayouts import run_plans as run_plans
from hocket.mesh.backends.torch.values import TorchTensor as TorchTensor
from hocket.mesh.backends.torch.values import adopt as adopt
from hocket.mesh.backends.torch.values import to_numpy as to_numpy
from hocket.mesh.backends.torch.values import to_torch as to_torch
from hocket.mesh.backends.torch.values import wrap as wrap
