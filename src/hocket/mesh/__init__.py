"""Meshes of devices, layouts of tensors on them, and tensors with such layouts.

`meshes` and `layouts` describe devices and tensors, and `relayouts` plans the way from one layout to another; these
modules need no framework. `tensors` has the class of values on a mesh, `operations` makes and inspects such values,
`variables` can be assigned to, and `datasets` yield batches. `trees` spreads all values of a model by `layout_maps`.
`checkpoints` saves and loads values, with `manifests` of their files, and `pictures` draws the parts of a value.
Frameworks plug in through `backends`. `tensorflow`, which users import explicitly, sets up TensorFlow's own meshes.
"""

import typing as _typing

from hocket._base import missing as _missing

if _typing.TYPE_CHECKING:
    from hocket.mesh.checkpoints import export as export
    from hocket.mesh.checkpoints import load as load
    from hocket.mesh.checkpoints import save as save
    from hocket.mesh.datasets import DTensorDataset as DTensorDataset
    from hocket.mesh.layout_maps import LayoutMap as LayoutMap
    from hocket.mesh.layouts import MATCH as MATCH
    from hocket.mesh.layouts import UNSHARDED as UNSHARDED
    from hocket.mesh.layouts import Layout as Layout
    from hocket.mesh.layouts import Partial as Partial
    from hocket.mesh.layouts import Replicate as Replicate
    from hocket.mesh.layouts import Shard as Shard
    from hocket.mesh.manifests import CheckpointDamagedError as CheckpointDamagedError
    from hocket.mesh.meshes import Mesh as Mesh
    from hocket.mesh.operations import barrier as barrier
    from hocket.mesh.operations import call_with_layout as call_with_layout
    from hocket.mesh.operations import check_layout as check_layout
    from hocket.mesh.operations import copy_to_mesh as copy_to_mesh
    from hocket.mesh.operations import create_distributed_mesh as create_distributed_mesh
    from hocket.mesh.operations import create_mesh as create_mesh
    from hocket.mesh.operations import default_mesh as default_mesh
    from hocket.mesh.operations import fetch_layout as fetch_layout
    from hocket.mesh.operations import get_default_mesh as get_default_mesh
    from hocket.mesh.operations import is_dtensor as is_dtensor
    from hocket.mesh.operations import local_device_ids as local_device_ids
    from hocket.mesh.operations import local_device_locations as local_device_locations
    from hocket.mesh.operations import pack as pack
    from hocket.mesh.operations import relayout as relayout
    from hocket.mesh.operations import relayout_like as relayout_like
    from hocket.mesh.operations import unpack as unpack
    from hocket.mesh.pictures import visualize as visualize
    from hocket.mesh.relayouts import Plan as Plan
    from hocket.mesh.relayouts import Step as Step
    from hocket.mesh.relayouts import plan_relayout as plan_relayout
    from hocket.mesh.tensors import DTensor as DTensor
    from hocket.mesh.trees import Explanation as Explanation
    from hocket.mesh.trees import ParameterRow as ParameterRow
    from hocket.mesh.trees import distribute as distribute
    from hocket.mesh.trees import explain as explain
    from hocket.mesh.variables import DVariable as DVariable
    from hocket.mesh.variables import Function as Function
    from hocket.mesh.variables import function as function
    from hocket.mesh.variables import value_and_gradients as value_and_gradients

_missing.explain(__name__)
