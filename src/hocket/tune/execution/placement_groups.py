"""A module for programs written for Ray: it has `PlacementGroupFactory`, which others import from `hocket.tune`."""

from hocket.tune.resources import PlacementGroupFactory as PlacementGroupFactory
