"""Strategies that choose where tasks and actors run."""

from hocket.core.placement import DoesNotExist as DoesNotExist
from hocket.core.placement import Exists as Exists
from hocket.core.placement import In as In
from hocket.core.placement import NodeAffinitySchedulingStrategy as NodeAffinitySchedulingStrategy
from hocket.core.placement import NodeLabelSchedulingStrategy as NodeLabelSchedulingStrategy
from hocket.core.placement import NotIn as NotIn
from hocket.core.placement import PlacementGroupSchedulingStrategy as PlacementGroupSchedulingStrategy
