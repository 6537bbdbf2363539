"""Where tasks and actors run."""

from hocket.core.placement import PlacementGroupSchedulingStrategy as PlacementGroupSchedulingStrategy
