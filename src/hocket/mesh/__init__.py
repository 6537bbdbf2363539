"""Meshes of devices and layouts of tensors on them.

`meshes` and `layouts` describe, `relayouts` computes what it takes to go from one layout to another. None of them needs
a framework.
"""

from hocket.mesh.layouts import MATCH as MATCH
from hocket.mesh.layouts import UNSHARDED as UNSHARDED
from hocket.mesh.layouts import Layout as Layout
from hocket.mesh.layouts import Partial as Partial
from hocket.mesh.layouts import Replicate as Replicate
from hocket.mesh.layouts import Shard as Shard
from hocket.mesh.meshes import Mesh as Mesh
from hocket.mesh.relayouts import Plan as Plan
from hocket.mesh.relayouts import Step as Step
from hocket.mesh.relayouts import plan_relayout as plan_relayout
