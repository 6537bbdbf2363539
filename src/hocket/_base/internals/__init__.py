"""Undocumented names of other libraries that Hocket uses: one module for each library.

A library may change such a name in any version, without notice. So no other module of Hocket uses one, and
``tests/base/test_internals.py`` calls each function here: it reports which name is gone, and in which version.
"""

from __future__ import annotations

from typing import Final

TORCH_COMPILER: Final = "torch._dynamo"
"""The module of torch's compiler. It and the next name stand here for modules that do not load torch."""

TORCH_GROUP_MAKER: Final = "_new_process_group_helper"
"""The function of `torch.distributed.distributed_c10d` that makes each process group."""
