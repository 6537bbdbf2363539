"""Tools on top of the programming model."""

from hocket.util.placement_group import PlacementGroup as PlacementGroup
from hocket.util.placement_group import get_current_placement_group as get_current_placement_group
from hocket.util.placement_group import get_placement_group as get_placement_group
from hocket.util.placement_group import placement_group as placement_group
from hocket.util.placement_group import placement_group_table as placement_group_table
from hocket.util.placement_group import remove_placement_group as remove_placement_group
