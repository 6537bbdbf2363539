"""Meshes and layouts on PyTorch: each rank of the default process group is a device, a value is torch's ``DTensor``.

Operations are torch's: it finds what a result is spread like, and its collectives go over the group's backend; where
its rule is missing or wrong, `functions` computes on parts that are right. A relayout is ours (`relayouts`): the steps
of the plan on what the rank has, so no more bytes move than the algebra says; its gradient is the relayout back.
`values` says what a value is, `modules` spreads those of a module in place, and `backend` has the verbs.

All ranks call the same in the same order: making a mesh, relayouts, `hocket.mesh.gather`, and operations.
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
