"""Tools on top of the programming model.

`queue`, `metrics`, `multiprocessing`, `scheduling_strategies` and others are separate modules, imported at first use.
"""

from hocket._base import missing as _missing
from hocket.util.actor_group import ActorGroup as ActorGroup
from hocket.util.actor_pool import ActorPool as ActorPool
from hocket.util.check_serialize import inspect_serializability as inspect_serializability
from hocket.util.helpers import as_completed as as_completed
from hocket.util.helpers import map_unordered as map_unordered
from hocket.util.lookup import get_node_ip_address as get_node_ip_address
from hocket.util.lookup import list_named_actors as list_named_actors
from hocket.util.lookup import log_once as log_once
from hocket.util.placement_group import PlacementGroup as PlacementGroup
from hocket.util.placement_group import get_current_placement_group as get_current_placement_group
from hocket.util.placement_group import get_placement_group as get_placement_group
from hocket.util.placement_group import placement_group as placement_group
from hocket.util.placement_group import placement_group_table as placement_group_table
from hocket.util.placement_group import remove_placement_group as remove_placement_group
from hocket.util.serialization import deregister_serializer as deregister_serializer
from hocket.util.serialization import register_serializer as register_serializer

_missing.explain(
    __name__, ("collective", "joblib", "metrics", "multiprocessing", "queue", "scheduling_strategies", "state")
)
