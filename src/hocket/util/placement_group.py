"""The place of placement groups in Ray.

Hocket's own place for these names is `hocket.util`.
"""

from hocket.core.placement import PlacementGroup as PlacementGroup
from hocket.core.placement import get_current_placement_group as get_current_placement_group
from hocket.core.placement import get_placement_group as get_placement_group
from hocket.core.placement import placement_group as placement_group
from hocket.core.placement import placement_group_table as placement_group_table
from hocket.core.placement import remove_placement_group as remove_placement_group
