"""Where Ray's programs look for placement groups.

The names are also in `hocket.util`, which is their place in Hocket.
"""

from hocket.core.placement import PlacementGroup as PlacementGroup
from hocket.core.placement import get_current_placement_group as get_current_placement_group
from hocket.core.placement import get_placement_group as get_placement_group
from hocket.core.placement import placement_group as placement_group
from hocket.core.placement import placement_group_table as placement_group_table
from hocket.core.placement import remove_placement_group as remove_placement_group
