"""Classes that travel by value: those of the driver's script, and those made inside functions.

Cloudpickle gives each a number when it leaves its process, and where the number is known already the class is not built
again: so what comes back is an instance of the driver's own class, and ``except MyError`` catches it. Our functions are
pickled with cloudpickle and Ray's values with a copy of it that Ray brings. The two count apart, unless they are told
to use one list.
"""

from __future__ import annotations

import ray
from cloudpickle import cloudpickle

_TABLES = ("_DYNAMIC_CLASS_TRACKER_BY_CLASS", "_DYNAMIC_CLASS_TRACKER_BY_ID")
"""By class, and by number; both forget a class that is gone."""


def share_numbers() -> None:
    """Have Ray's cloudpickle use the numbers of the other one in this process, from now on. Again: does nothing."""
    theirs: object = ray.cloudpickle.cloudpickle
    for name in _TABLES:
        ours, others = getattr(cloudpickle, name), getattr(theirs, name)
        if others is not ours:
            ours.update({key: found for key, found in others.items() if key not in ours})
            setattr(theirs, name, ours)
