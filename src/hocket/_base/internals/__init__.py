"""Names of other libraries that these do not document, and that Hocket uses all the same: one module for each library.

A version of a library may change them without a word, so no other module uses one, and ``tests/base/test_internals.py``
calls each here: it says which name is gone, and in which version.
"""

from __future__ import annotations

from typing import Final

TORCH_COMPILER: Final = "torch._dynamo"
"""The module of torch's compiler. Here, as the next, for those that do not load torch."""

TORCH_GROUP_MAKER: Final = "_new_process_group_helper"
"""The function of `torch.distributed.distributed_c10d` that makes each process group."""
